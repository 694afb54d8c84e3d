"""Whoever is killed, and whenever: nothing of a run is left, and its end is written."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.node.conftest import Run

BUSY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
print("here")
for _ in range(6000): time.sleep(0.01)
"""

KILLS = 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_kill_at_any_time_leaves_nothing(make_run: Callable[..., Run]) -> None:
    dice = random.Random(os.environ.get("CLUSTERCTL_SOAK_SEED", "1"))
    slowest = 0.0
    for _ in range(KILLS):
        run = make_run(BUSY, nodes=2, procs=2, lost_after=2).start()
        time.sleep(dice.random() * 0.5)
        n = dice.randrange(2)
        victims = [run.pid_of_supervisor(n), *(rank["pid"] for rank in run.status(n)["ranks"])]
        victim = dice.choice([pid for pid in victims if pid])
        os.kill(victim, dice.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]))
        began = time.monotonic()
        states = [run.ended(each)["state"] for each in (0, 1)]
        slowest = max(slowest, time.monotonic() - began)
        assert set(states) <= {"failed", "lost", "stopped"}
        assert all(run.stop(each)["gone"] for each in (0, 1))
        assert not run.left()
    print(f"{KILLS} kills, the slowest end took {slowest:.1f} s")
