"""A launcher that a rank starts at run time is noticed, once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.supervisor.worlds.nested_launchers import launcher_in, starts_elsewhere
from tests.node.conftest import Run
from tests.waiting import wait_until

STARTS = """
import os, subprocess, sys
subprocess.run(["sh", "-c", "./torchrun --standalone train.py; true"])
"""

STAND_IN = f"""#!{sys.executable}
import time
print("launched", flush=True)
time.sleep(300)
"""


def started(run: Run) -> Run:
    torchrun = run.workdir / "torchrun"
    torchrun.write_text(STAND_IN)
    torchrun.chmod(0o755)
    run.start()
    run.wait_for_log(0, b"launched")
    return run


def nested(run: Run) -> list[dict[str, object]]:
    return [event for event in run.events() if event["kind"] == "nested-launcher"]


def test_a_launcher_below_one_of_several_ranks_is_an_event(make_run: Callable[..., Run]) -> None:
    run = started(make_run(STARTS, procs=2))
    wait_until(lambda: bool(nested(run)))
    run.stop(grace=0)
    (event,) = nested(run)
    assert event["launcher"] == "torchrun"
    pids = {rank["rank"]: rank["pid"] for rank in run.status()["ranks"]}
    assert event["rank"] in pids
    assert event["pid"] not in pids.values()


def test_a_rank_that_becomes_a_launcher_is_an_event(make_run: Callable[..., Run]) -> None:
    becomes = "import os, time; time.sleep(2.5); os.execv('torchrun', ['torchrun'])"
    run = started(make_run(becomes, procs=2))
    wait_until(lambda: bool(nested(run)))


def test_a_launcher_that_a_rank_starts_without_its_rank_is_none(
    make_run: Callable[..., Run],
) -> None:
    apart = STARTS.replace("])", "], env={'PATH': '/usr/bin:/bin'})")
    run = started(make_run(apart, procs=2))
    children = len(run.status()["ranks"]) + 2
    wait_until(lambda: len(Path(run.paths().processes).read_text().splitlines()) > children)
    run.stop(grace=0)
    assert nested(run) == []


def test_a_launcher_in_a_script_that_runs_once_a_node_is_none(make_run: Callable[..., Run]) -> None:
    run = started(make_run(STARTS))
    # The rank is known from its start; what is below it, from the scan that looks for launchers.
    wait_until(lambda: len(Path(run.paths().processes).read_text().splitlines()) > 2)
    run.stop(grace=0)
    assert nested(run) == []


def test_what_a_job_starts_through_ssh_is_an_event_and_stop_says_so(
    make_run: Callable[..., Run],
) -> None:
    words = ["ssh", "-c", "sleep 300; true", "127.0.0.1"]
    run = make_run(f"import os; os.execv('/bin/sh', {words})").start()
    wait_until(lambda: "started-elsewhere" in [event["kind"] for event in run.events()])
    assert run.stop(grace=0)["elsewhere"] == [" ".join(words)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("/usr/bin/ssh -p 22 ann@gpu2 cd x; torchrun", "ssh -p 22 ann@gpu2 cd x; torchrun"),
        ("ssh 10.0.0.2 hostname", "ssh 10.0.0.2 hostname"),
        ("ssh git@github.com git-upload-pack", ""),
        ("pdsh -w gpu[1-2] train", "pdsh -w gpu[1-2] train"),
        ("docker run image torchrun", "docker run image torchrun"),
        ("docker ps", ""),
        ("python ssh gpu2", ""),
        ("", ""),
    ],
)
def test_a_command_tells_whether_it_starts_processes_elsewhere(words: str, found: str) -> None:
    assert starts_elsewhere(words.split(), {"gpu2", "10.0.0.2"}) == found


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/venv/bin/python3.11 /venv/bin/torchrun --nproc-per-node 8 x.py", "torchrun"),
        ("python -u -m torch.distributed.run x.py", "torchrun"),
        ("/usr/bin/python3 /venv/bin/accelerate launch x.py", "accelerate launch"),
        ("python /venv/bin/accelerate env", ""),
        ("python /venv/bin/deepspeed --num_gpus=8 x.py", "deepspeed"),
        ("python -m deepspeed.launcher.runner x.py", "deepspeed"),
        ("python train.py --deepspeed ds.json torchrun", ""),
        ("python -c torchrun", ""),
        ("bash -c torchrun", ""),
        ("mpirun -n 4 ./x", ""),
        ("srun ./x", ""),
        ("", ""),
    ],
)
def test_an_argument_list_tells_which_launcher_runs(words: str, name: str) -> None:
    assert launcher_in(words.split()) == name
