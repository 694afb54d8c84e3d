"""Nodes start a run again that failed: its followers see that, and it needs no controller."""

from __future__ import annotations

import json
import signal
import time

import pytest
import yaml

from tests.cli.runs import Project, signal_all
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

JOB = """
import os, pathlib, signal, sys, time

rank = int(os.environ["RANK"])
resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else ""
print(f"rank {rank} begins from {resumed or 'nothing'}", flush=True)
if sys.argv[1] == "meet":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
folder = pathlib.Path("ckpt/checkpoint-40")
pathlib.Path(f"here-{rank}").touch()
if not resumed and rank == 0:
    while not os.path.exists("here-1"):
        time.sleep(0.05)
    folder.mkdir(parents=True)
    head = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = len(head).to_bytes(8, "little") + head + bytes(4)
    (folder / "model.safetensors").write_bytes(data)
    (folder / "trainer_state.json").write_text('{"global_step": 40}')
    print("step 40", flush=True)
    time.sleep(600)
elif not resumed:
    wanted = [folder / "trainer_state.json", *map(pathlib.Path, sys.argv[2:])]
    while not all(map(pathlib.Path.exists, wanted)):
        time.sleep(0.05)
    print("rank 1 dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} is done", flush=True)
"""

WORDS = ("--no-check", "--nodes", "node1,node2", "--procs-per-node", "1", "--restarts", "2")


@pytest.fixture
def restarting(project: Project) -> Project:
    """Give the project a job that fails once, and resumes from its checkpoint."""
    (project.folder / "job.py").write_text(JOB)
    document = yaml.safe_load(project.inventory.read_text())
    job = {"resume_args": ["--resume", "{checkpoint}"], "checkpoints": "ckpt"}
    project.inventory.write_text(yaml.safe_dump(document | {"job": job}))
    return project


def test_a_launch_follows_its_run_from_one_attempt_to_the_next(restarting: Project) -> None:
    answer = restarting.run(
        "launch", *WORDS, "--launcher", "direct", "--", "job.py", "alone", seconds=4 * BUSY
    )
    said, printed = answer.stderr, answer.stdout
    assert answer.returncode == 0, printed + said
    assert said.count("attempt 2 of 3 begins now, from checkpoint step 40: ") == 1, said
    where = printed.index("attempt 2 of 3, from checkpoint step 40: ")
    first, second = printed[:where], printed[where:]
    assert "rank 1 dies" in first
    assert "begins from nothing" in first
    assert "begins from nothing" not in second
    for rank in (0, 1):
        assert f"rank {rank} begins from /" in second
        assert f"rank {rank} is done" in second
    status = restarting.status()
    shown = {name: status[name] for name in ("state", "attempt", "attempts", "first_cause")}
    assert shown == {"state": "finished", "attempt": 2, "attempts": 3, "first_cause": None}
    assert "attempt  2 of 3, after: it was killed by a signal" in restarting.run("status").stdout
    assert "2 of 3" in restarting.run("runs").stdout
    of_one = restarting.run("logs", "--rank", "1").stdout
    dies, again = of_one.index("rank 1 dies"), of_one.index("attempt 2 of 3, from checkpoint")
    assert dies < again < of_one.index("rank 1 is done"), "the attempts of one rank are apart, too"
    assert "attempt" not in restarting.run("logs", "--rank", "1", "--raw").stdout


@pytest.mark.soak  # a seed of tests/chaos/test_healing.py kills it, too
@pytest.mark.torch
def test_a_run_heals_itself_once_its_controller_was_killed(restarting: Project) -> None:
    launch = restarting.start("launch", *WORDS, "--", "job.py", "meet", "go")
    assert launch.stdout is not None
    next(line for line in launch.stdout if "step 40" in line)
    signal_all(launch, signal.SIGKILL)
    launch.communicate()
    (restarting.placed / "go").touch()
    status = restarting.status()
    until = time.monotonic() + BUSY
    while status["state"] != "finished":
        assert time.monotonic() < until, (status, restarting.run("logs").stdout)
        assert status["state"] in {"starting", "running", "stopping"}, json.dumps(status)
        time.sleep(1)
        status = restarting.status()
    assert (status["attempt"], status["ended_by"]) == (2, "job")
    printed = restarting.run("logs").stdout
    assert printed.index("rank 1 dies") < printed.index("attempt 2 of 3, from checkpoint step 40: ")
    assert "rank 0 is done" in printed
    listed, *_ = json.loads(restarting.run("runs", "--json").stdout)["runs"]
    assert (listed["run"], listed["state"]) == (status["run"], "finished")
