"""What GPUs do counts as life if their memory moves, not if their kernels only poll."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Hang, Job
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang import nvml
from clusterctl.node.supervisor.watch import gpu_watch
from clusterctl.node.supervisor.watch.gpu_watch import FRESH_SECONDS, RETRY_SECONDS, GpuWatch
from tests.node.conftest import Run
from tests.node.hang.as_nvml import StandIn
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
HALTS = """
import os, time
def tell(moving):
    with open("table.new", "w") as file:
        print(100, moving, 500000, 60, 0, os.getpid(), file=file)
    os.rename("table.new", os.environ["NVML_TABLE"])
tell(40)
print("here", flush=True)
while not os.path.exists("polls"):
    time.sleep(0.2)
tell(0)
while not os.path.exists("goes on"):
    time.sleep(0.2)
tell(40)
time.sleep(600)
"""
AFTER = 5.0


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_TABLE", str(found.table))
    return found


def test_a_rank_whose_gpu_computes_is_no_hang_and_one_whose_gpu_polls_is(
    make_run: MakeRun, stand_in: StandIn
) -> None:
    run = make_run(HALTS, job=Job(hang=Hang(after=AFTER)))
    run.change = {"device": "cuda"}
    run.start().wait_for_log(0, b"here")
    time.sleep(2 * AFTER)
    assert stand_in.table.exists()
    assert run.status()["hung"] is None
    (run.workdir / "polls").touch()
    wait_until(lambda: run.status()["hung"])
    (run.workdir / "goes on").touch()
    wait_until(lambda: run.status()["false_alarms"] == 1)


def watch(loop: EventLoop, period: float = 0.0, **job: object) -> GpuWatch:
    return GpuWatch(loop, {"device": "cuda", **job}, period)  # type: ignore[typeddict-item]


def read(loop: EventLoop, watched: GpuWatch) -> None:
    """Read once, and wait for the result."""
    watched.read()
    while watched._helper._busy:
        loop.run_once()


@pytest.fixture
def here(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(nvml, "LIBRARY", str(stand_in.path))
    return stand_in


def test_gpus_rest_if_all_their_last_readings_say_so(
    here: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EventLoop()
    gpus = watch(loop, lock="machine/GPU-1")
    assert not gpus.rest({1}), "nothing is known"
    here.tell("100 0 0 0 0 1", "100 30 0 0 0 2")
    read(loop, gpus)
    assert gpus.rest({1})
    assert not gpus.rest({2})
    assert not gpus.rest({3}), "the driver tells no process of it, so GPU-1 is the run's"
    here.tell("100 30 0 0 0 1", "100 0 0 0 0 2")
    read(loop, gpus)
    assert not gpus.rest({1})
    assert gpus.compute({1}, {1}, since=0.0)
    assert not gpus.compute({2}, {1, 2}, since=time.monotonic())
    later = time.monotonic() + FRESH_SECONDS + 1
    here.tell("100 0 0 0 0 1")
    for _ in range(3):
        read(loop, gpus)
    assert gpus.rest({1})
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not gpus.rest({1}), "that is too old"


def test_a_driver_that_hangs_costs_nothing_but_its_answer(
    here: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "READING_SECONDS", 0.5)
    here.tell("hangs")
    loop = EventLoop()
    gpus = watch(loop)
    forks, fork = itertools.count(), os.fork
    monkeypatch.setattr(os, "fork", lambda: (next(forks), fork())[1])
    for _ in range(20):
        gpus.read()
    assert next(forks) == 1, "a second one would hang as well"
    assert not gpus.rest({1})
    read(loop, gpus)  # until it is killed


def test_a_driver_that_comes_late_is_found_and_one_that_does_not_costs_a_reading_a_minute(
    here: StandIn,
) -> None:
    loop = EventLoop()
    gpus = watch(loop, 5.0)
    waits = []
    for _ in range(6):
        began = time.monotonic()
        read(loop, gpus)  # there is no table, so no driver
        waits.append(round(gpus._due - began, -1))
        gpus._due = began
    assert waits == [10, 20, 40, RETRY_SECONDS, RETRY_SECONDS, RETRY_SECONDS]
    here.tell("100 0 0 0 0 1")
    read(loop, gpus)
    assert gpus.latest()
    assert not watch(loop, device="cpu").rest({1})
