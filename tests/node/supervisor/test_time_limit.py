"""A run whose time is over is asked to end, as by a stop, and does not start again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.supervisor.around.time_limit import seconds_left
from tests.node.conftest import Run
from tests.node.supervisor.test_attempts import of_attempts
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

SAVES = """
import os, signal, sys, time
if not os.path.exists("failed"):
    if os.environ["RANK"] == "1":
        open("failed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
time.sleep(600)
"""


def test_all_ranks_save_when_the_time_of_all_attempts_is_over(make_run: MakeRun) -> None:
    job = Job(stop=Stop(grace=20), max_time=14.0)
    run = of_attempts(make_run, SAVES, job=job).start()
    wait_until(lambda: 0 < (run.status()["time_left_s"] or 0) < 14)
    ends = [run.ended(n) for n in (0, 1)]
    assert [(end["state"], end["end"]["by"]) for end in ends] == [("stopped", "max-time")] * 2
    assert ends[0]["end"]["reason"] == "its time is over (max_time: 14 s)"
    assert ends[0]["end"]["no_restart"] == "its time is over (max_time: 14 s)"
    assert 9 < ends[0]["end"]["time"] - ends[0]["began"] < 24
    for n in (0, 1):
        assert run.log(n, n).endswith(b"saved\n")
        assert (ends[n]["attempt"], ends[n]["time_left_s"]) == (2, None)
    assert not run.left()


def test_a_clock_that_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"max_time": 60.0, "up": uptime() - 20, "began": time.time() - 20}
    monkeypatch.setattr(time, "time", lambda: 0.0)
    left = seconds_left(job)  # type: ignore[arg-type]
    assert left == pytest.approx(40, abs=1)
    assert seconds_left({**job, "max_time": None}) is None  # type: ignore[typeddict-item]
