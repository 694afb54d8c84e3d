"""At each step between two attempts of a run, `stop` wins: no further attempt begins."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, Stop
from tests.node.conftest import Run
from tests.node.supervisor.test_attempts import (
    JOB,
    MakeRun,
    fail_twice,
    kill_rank,
    kinds,
    of_attempts,
    wait_for_attempt,
)
from tests.waiting import wait_until

HOSTILE = [f"(a+)+{'b?' * n}$" for n in range(12)]
"""Patterns of which each takes the whole second that it gets."""


def children(run: Run, n: int) -> set[int]:
    """Return the processes that a node's supervisor has started."""
    pid = run.pid_of_supervisor(n)
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return set(map(int, text.split()))


def hold_look(run: Run, n: int) -> None:
    """Let a rank fail, and freeze the look at this node before the next attempt."""
    before = children(run, n)
    supervisor = run.pid_of_supervisor(n)
    path = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    kill_rank(run, 1)
    found: set[int] = set()
    while not found:
        found = set(map(int, path.read_text().split())) - before
    os.kill(min(found), signal.SIGSTOP)


def ending(run: Run, _: int) -> None:
    kill_rank(run, 1)  # the other rank has 30 seconds
    wait_until(lambda: run.status(1)["state"] == "stopping")


def checks(run: Run, n: int) -> None:
    hold_look(run, n)


def agreement(run: Run, n: int) -> None:
    hold_look(run, 1 - n)
    wait_until(lambda: not children(run, n))


def decision(run: Run, _: int) -> None:
    kill_rank(run, 1)
    wait_until(lambda: bool(kinds(run, 1, "rank-ended")))
    since, seen = time.monotonic(), children(run, 0)
    while not seen or time.monotonic() - since < 2:  # longer than any look
        now = children(run, 0)
        since, seen = (since if now == seen else time.monotonic()), now
        time.sleep(0.02)


def waiting(run: Run, n: int) -> None:
    fail_twice(run, n)


def starting(run: Run, n: int) -> None:
    first = Path(f"/proc/{run.pid_of_supervisor(n)}")
    kill_rank(run, 1)
    while first.exists():
        time.sleep(0.001)


ALL = [
    (moment, attempts, n)
    for moment, attempts in (
        (ending, 1), (checks, 1), (agreement, 1), (decision, 1), (waiting, 2), (starting, 2),
    )
    for n in (0, 1)
]  # fmt: skip
QUICK = [(ending, 0), (checks, 1), (agreement, 0), (decision, 0), (starting, 1)]


@pytest.mark.parametrize(
    ("moment", "attempts", "n"),
    [
        pytest.param(*each, marks=[] if (each[0], each[2]) in QUICK else [pytest.mark.soak])
        for each in ALL
    ],
)
def test_a_stop_wins(
    make_run: MakeRun, moment: Callable[[Run, int], None], attempts: int, n: int
) -> None:
    text = f"print('{'a' * 60}!')\n{JOB}"
    grace = 30.0 if moment is ending else 1.0
    job = Job(stop=Stop(grace=5, failure_grace=grace))
    run = of_attempts(make_run, text, job=job)
    if moment is decision:
        run.change["restart"]["on"] = {"patterns": HOSTILE}
    run.start()
    wait_for_attempt(run, 1)
    moment(run, n)
    assert run.stop(n)["gone"]
    ends = [run.ended(n) for n in (0, 1)]
    last = [max(one["time"] for one in kinds(run, n, "supervisor-up")) for n in (0, 1)]
    stopped = time.time()
    assert {end["state"] for end in ends} <= {"failed", "stopped"}
    assert max(end["attempt"] for end in ends) <= attempts
    if max(end["attempt"] for end in ends) == 1:
        assert [end["end"]["no_restart"] for end in ends] == ["it was stopped"] * 2
        assert ends[1]["end"]["exit_code"] == 128 + signal.SIGKILL, "that of the attempt"
    assert [end["end"].get("run_exit_code") for end in ends] == [None, None]
    assert not run.left()
    time.sleep(1.5)  # the first wait
    assert max(last) < stopped
    assert not run.left()
