"""What the kernel tells of its out-of-memory killer, and what a killed rank's end says of it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.logs.first_cause import NodeReport, first_cause
from clusterctl.node.supervisor.ranks import rank_state
from clusterctl.node.supervisor.ranks.rank_state import oom_kills
from tests.node.conftest import Run

MakeRun = Callable[..., Run]


def test_the_count_is_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = oom_kills()
    assert here is None or here >= 0
    monkeypatch.setattr(rank_state, "VMSTAT", str(tmp_path / "vmstat"))
    assert oom_kills() is None
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 3\nother 1\n")
    assert oom_kills() == 3


def test_the_end_of_a_killed_rank_has_the_kernels_count(make_run: MakeRun) -> None:
    run = make_run("import time; print('here'); time.sleep(300)").start()
    run.wait_for_log(0, b"here")
    os.kill(run.status()["ranks"][0]["pid"], signal.SIGKILL)
    run.ended()
    (event,) = [event for event in run.events() if event["kind"] == "rank-ended"]
    assert event["oom_kills"] is None if oom_kills() is None else event["oom_kills"] >= 0


def test_the_end_of_a_killed_rank_has_the_limit_of_cpu_time(make_run: MakeRun) -> None:
    run = make_run("import time; print('here'); time.sleep(300)").start()
    run.wait_for_log(0, b"here")
    resource.prlimit(run.pid_of_supervisor(), resource.RLIMIT_CPU, (1800, 1800))
    os.kill(run.status()["ranks"][0]["pid"], signal.SIGKILL)
    run.ended()
    (event,) = [event for event in run.events() if event["kind"] == "rank-ended"]
    assert event["cpu_limit_s"] == 1800
    cause = first_cause([NodeReport(node="a", events=[{**event, "oom_kills": 0}])])
    assert cause is not None
    assert "after 1800 s of CPU time" in cause.remedy


def test_the_end_of_another_rank_has_none(make_run: MakeRun) -> None:
    run = make_run("raise SystemExit(3)").start()
    run.ended()
    (event,) = [event for event in run.events() if event["kind"] == "rank-ended"]
    assert "oom_kills" not in event
