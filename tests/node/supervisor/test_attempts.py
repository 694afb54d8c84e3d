"""A run that failed is started again by its supervisors, without a controller."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node import run_lock
from clusterctl.node.run.processes import processes
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
Head = dict[str, Any]

JOB = """
import os, sys, time
rank, attempt = os.environ["RANK"], sys.argv[1]
held = os.open("lock-" + rank, os.O_CREAT | os.O_RDWR)
import fcntl
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never two attempts alive at once
resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else "nothing"
print("begin", rank, "from", resumed)
for step in range(3):
    print("step", step, "of", rank)
print("here", rank)
while not os.path.exists("go"):
    time.sleep(0.02)
print("done", rank)
"""


def of_attempts(
    make_run: MakeRun, text: str = JOB, *, most: int = 3, nodes: int = 2, **options: Any
) -> Run:
    """Make a run that may restart; checkpoints are in `ckpt`."""
    run = make_run(text, "words", nodes=nodes, **options)
    command = [sys.executable, "-u", "-c", text, "words"]
    run.change = {
        "checkpoints": "ckpt",
        "restart": {
            "max": most,
            "on": {},
            "never": {},
            "resumed_argv": [*command, "--resume", "{checkpoint}"],
        },
    }
    return run


def kinds(run: Run, n: int, *wanted: str) -> list[Head]:
    return [event for event in run.events(n) if event["kind"] in wanted]


def wait_for_attempt(run: Run, attempt: int) -> None:
    """Wait until both nodes run this attempt."""
    for n in range(len(run.names)):
        wait_until(
            lambda n=n: len(kinds(run, n, "supervisor-up")) == attempt  # type: ignore[misc]
            and Path(run.paths(n).folder, f"ranks/{n}.log").exists()
            and run.log(n, n).count(b"here") >= attempt
        )


def kill_rank(run: Run, n: int, number: int = signal.SIGKILL) -> None:
    os.kill(run.status(n)["ranks"][0]["pid"], number)


def save(run: Run, step: int) -> Path:
    """Write a complete checkpoint, as the ranks of the run would."""
    folder = run.workdir / "ckpt" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    head = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = len(head).to_bytes(8, "little") + head + b"\0" * 4
    (folder / "model.safetensors").write_bytes(data)
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return folder


def test_a_killed_rank_makes_both_nodes_run_attempt_2_from_the_checkpoint(
    make_run: MakeRun,
) -> None:
    run = of_attempts(make_run).start()
    wait_for_attempt(run, 1)
    time.sleep(0.2)
    saved = save(run, 40)
    guards = [run.pid_of_guard(n) for n in (0, 1)]
    kill_rank(run, 1)
    wait_for_attempt(run, 2)
    assert [run.pid_of_guard(n) for n in (0, 1)] == guards
    for n in (0, 1):
        assert f"begin {n} from {saved}\n".encode() in run.log(n, n)
        assert run.log(n, n).count(b"step 0 of") == 2, "the logs of both attempts are there"
        status = run.status(n)
        assert (status["state"], status["attempt"]) == ("running", 2)
    (run.workdir / "go").touch()
    ends = [run.ended(n) for n in (0, 1)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    assert not run.left()
