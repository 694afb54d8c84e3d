"""The same small training on two hosts, by every launcher: watched, failed, stopped, resumed."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
import yaml

from clusterctl.plan.launchers import LAUNCHERS
from tests.cli.runs import Project
from tests.waiting import BUSY, wait_until

# What holds without this training: test_containers.py kills a rank of torchrun, test_torchrun.py
# and test_accelerate.py fail one, and a page plays a stop and a resume (test_outputs.py).
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.soak]

TRAIN = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
linear = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(linear.weight, 1.0)
model = DistributedDataParallel(linear)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = 0
if len(sys.argv) > 1:
    saved = torch.load(pathlib.Path(sys.argv[1]) / "pytorch_model.bin", weights_only=False)
    model.load_state_dict(saved["model"])
    start = saved["step"]
for step in range(start + 1, int(os.environ["STEPS"]) + 1):
    loss = model(torch.full((1, 1), float(rank + step))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        folder = pathlib.Path("out") / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        torch.save({"model": model.state_dict(), "step": step}, folder / "pytorch_model.bin")
        (folder / "trainer_state.json").write_text('{"global_step": %d}' % step)
        print(f"world {world} step {step} loss {loss.item():.6f}", flush=True)
    if str(step) == os.environ.get("PAUSE_AT"):
        time.sleep(600)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # threads of gloo may abort the process at Python's own end
"""
STEPS = 6
WITH_RANKS = [
    name
    for name, launcher in LAUNCHERS.items()
    if not launcher.one_driver and name != "slurm"  # for it there is `test_slurm`
]
"""Launchers that start the same command on every node; `test_ray.py` has the other."""


@pytest.fixture
def training(project: Project) -> Project:
    """A project with the training; node1 has two ranks, unless the launcher wants equal nodes."""
    (project.folder / "train.py").write_text(TRAIN)
    return project


def describe(project: Project, launcher: str, nodes: int = 2, **more: object) -> None:
    """Write the job of this launcher on so many hosts into the project's inventory."""
    document = yaml.safe_load(project.inventory.read_text())
    document["nodes"] = document["nodes"][:nodes]
    if not LAUNCHERS[launcher].equal_nodes:
        first, *others = document["nodes"]
        first = first if isinstance(first, dict) else {"host": first}
        document["nodes"] = [{**first, "procs": 2}, *others]
    job = {
        "launcher": launcher,
        "command": ["train.py"],
        "env": {"STEPS": str(STEPS), "OMP_NUM_THREADS": "1"},
        "checkpoints": "out",
        "resume_args": ["{checkpoint}"],
        **more,
    }
    project.inventory.write_text(yaml.safe_dump({**document, "job": job}, sort_keys=False))


def world_size(launcher: str) -> int:
    return 2 if LAUNCHERS[launcher].equal_nodes else 3


def expected(world: int) -> dict[int, float]:
    """Return rank 0's losses: each rank sees another number, and all gradients count."""
    weight, found = 1.0, dict[int, float]()
    for step in range(1, STEPS + 1):
        found[step] = (weight * step) ** 2
        weight -= 0.01 * sum(2 * weight * (rank + step) ** 2 for rank in range(world)) / world
    return found


def losses(lines: list[str]) -> dict[int, float]:
    return {int(w[3]): float(w[5]) for line in lines if (w := line.split())[:1] == ["world"]}


def raw_log(project: Project) -> list[str]:
    return project.run("logs", "--raw", "--rank", "0").stdout.splitlines()


def wait_for_step(project: Project, step: int) -> None:
    folder = project.placed / "out" / f"checkpoint-{step}"
    wait_until((folder / "trainer_state.json").exists, why=lambda: f"step {step} never came")


def kill_a_rank(project: Project, rank: int) -> None:
    """Kill a rank on its host, as the kernel does if memory is short."""
    found: list[dict[str, Any]] = [one for one in project.status()["ranks"] if one["rank"] == rank]
    (one,) = found
    argv = ["kill", f"-{signal.SIGKILL.value}", str(one["pid"])]
    project.sandbox.on(one["node"], argv)


@pytest.mark.parametrize("launcher", WITH_RANKS)
def test_a_killed_rank_ends_all_and_the_rest_of_the_training_is_resumed(
    training: Project, launcher: str
) -> None:
    describe(training, launcher)
    world = world_size(launcher)
    launched = training.start("launch", "--env", "PAUSE_AT=2")
    wait_for_step(training, 2)
    kill_a_rank(training, world - 1)
    _, errors = launched.communicate(timeout=BUSY)
    assert launched.returncode == 128 + signal.SIGKILL, errors
    status = training.status()
    cause = status["first_cause"]
    assert (status["state"], cause["node"], cause["rank"]) == ("failed", "node2", world - 1)
    ranks = [(one["rank"], one["state"], one["joined"]) for one in status["ranks"]]
    assert ranks == [(n, "ended", True) for n in range(world)]
    before = losses(raw_log(training))
    resumed = training.run("resume", "--checkpoint", "latest", "--env", "PAUSE_AT=0")
    assert resumed.returncode == 0, resumed.stderr
    after = losses(raw_log(training))
    assert (sorted(before), sorted(after)) == ([1, 2], [*range(3, STEPS + 1)])
    assert {**before, **after} == pytest.approx(expected(world), rel=1e-4)
    assert {one["exit_code"] for one in training.status()["ranks"]} == {0}


ELASTIC = """
import os, pathlib, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
saved = pathlib.Path("out/steps")
step = int(saved.read_text()) if saved.exists() else 0
while not os.path.exists(f"end{world}"):
    dist.all_reduce(torch.ones(1))
    step += 1
    if rank == 0:
        saved.parent.mkdir(exist_ok=True)
        saved.write_text(str(step))
        pathlib.Path(f"out/world{world}").touch()
        print(f"world {world} step {step} loss 0", flush=True)
    time.sleep(0.1)
dist.barrier()
"""


# Without SSH: tests/node/supervisor/test_elastic.py, and `test_states` of verbs
def test_an_elastic_training_continues_without_a_node(training: Project) -> None:
    """It starts on three hosts; one is lost, and the training goes on where it was."""
    (training.folder / "train.py").write_text(ELASTIC)
    conf = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"
    args = ["--nnodes=2:3", "--max-restarts=3", f"--rdzv-conf={conf}"]
    describe(training, "torchrun", 3, launcher_args=args)
    launched = training.start("launch", "--lost-after", "4", "--json")
    wait_until((training.placed / "out" / "world4").exists)
    (node,) = [one for one in training.status()["nodes"] if one["node"] == "node3"]
    pid = node["supervisor"]["pid"]
    # The guard too, so that nobody is left there to say why.
    kill = f"import os; os.killpg(os.getpgid({pid}), 9)"
    killed = training.sandbox.on("node3", [sys.executable, "-c", kill])
    assert killed.returncode == 0, killed.stderr
    wait_until((training.placed / "out" / "world3").exists)
    status = training.status()
    assert status["state"] == "running"
    running = [
        (one["node"], one["local_rank"]) for one in status["ranks"] if one["node"] != "node3"
    ]
    assert sorted(running) == [("node1", 0), ("node1", 1), ("node2", 0)]
    (training.placed / "end3").touch()
    out, errors = launched.communicate(timeout=120)
    assert launched.returncode == 0, errors
    ended = json.loads(out.splitlines()[-1])
    assert (ended["state"], ended["first_cause"]) == ("finished", None)
    assert training.status()["state"] == "finished"


@pytest.mark.parametrize("launcher", WITH_RANKS)
def test_a_stop_is_verified_and_what_is_left_of_the_training_resumed(
    training: Project, launcher: str
) -> None:
    describe(training, launcher)
    launched = training.start("launch", "--env", "PAUSE_AT=2")
    wait_for_step(training, 2)
    stopped = training.run("stop")
    assert stopped.returncode == 0, stopped.stderr  # it verified that no process is left
    launched.communicate(timeout=BUSY)
    resumed = training.run("resume", "--checkpoint", "latest", "--env", "PAUSE_AT=0")
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(losses(raw_log(training))) == [*range(3, STEPS + 1)]
