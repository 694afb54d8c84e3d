"""What is read of GPUs by the driver's library, and what follows from it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.hang import gpus, nvml
from clusterctl.node.hang.nvml import Gpu
from tests.node.hang.as_nvml import StandIn

HARDWARE, HOT = 0x8, 0x40


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return put(StandIn(tmp_path), monkeypatch)


def put(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(nvml, "LIBRARY", str(stand_in.path))
    monkeypatch.setenv("NVML_TABLE", str(stand_in.table))
    return stand_in


def gpu(number: int = 0, /, **told: object) -> Gpu:
    unknown = dict.fromkeys(Gpu._fields)
    return Gpu(**{**unknown, "number": number, "uuid": f"GPU-{number}", **told})  # type: ignore[arg-type]


def readable(number: int = 0, /, **told: object) -> dict[str, Any]:
    """Return what is read of a GPU that has the stand-in's memory."""
    return gpu(number, memory_used=71 << 30, memory_total=80 << 30, **told)._asdict()


def test_all_that_gpus_tell_is_read(stand_in: StandIn) -> None:
    stand_in.tell("97 41 512000 66 4 4711 4712", "0 0 71000 31 1")
    assert nvml.read() == [
        readable(busy=97, moving=41, milliwatts=512000, celsius=66, slowed=4, pids=[4711, 4712]),
        readable(1, busy=0, moving=0, milliwatts=71000, celsius=31, slowed=1, pids=[]),
    ]


def test_what_a_gpu_does_not_tell_is_unknown(stand_in: StandIn) -> None:
    many = " ".join(map(str, range(1, nvml.MOST_PROCESSES + 2)))
    stand_in.tell("-1 -1 -1 -1 -1 -1", "lost", "3 0 -1 40 0 " + many)
    assert nvml.read() == [readable(), readable(2, busy=3, moving=0, celsius=40, slowed=0)]


def test_an_older_driver_is_asked_by_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(StandIn(tmp_path, old=True), monkeypatch).tell("97 41 512000 66 64 4711")
    assert nvml.read() == [readable(busy=97, moving=41, celsius=66, slowed=HOT, pids=[4711])]


def test_without_a_driver_nothing_is_told(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nvml.read() is None  # the library is there, and cannot reach the driver
    assert gpus.throttled_gpus() == []
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "none.so.1"))
    stand_in.tell("0 0 0 0 0")
    assert nvml.read() is None


def test_a_throttled_gpu_is_named(stand_in: StandIn) -> None:
    stand_in.tell("100 40 300000 60 4 1", f"100 40 188400 91 {HARDWARE | HOT} 2", "0 0 -1 -1 32 3")
    hot = "GPU 1: slowed down by its hardware, too hot (91 °C, 188 W)"
    other = "GPU 2: slowed down by the driver: too hot"
    assert gpus.throttled_gpus() == [hot, other]
    assert gpus.throttled_gpus({2}) == [hot]
    assert gpus.throttled_gpus({1}) == []


def test_a_driver_that_hangs_is_left_behind(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "SECONDS", 0.5)
    stand_in.tell("hangs")
    began = time.monotonic()
    assert gpus.throttled_gpus() == []
    assert time.monotonic() - began < 20


WAITS, TRAINS, IDLE = (
    {"busy": 100, "moving": 0}, {"busy": 100, "moving": 38}, {"busy": 0, "moving": 0},
)  # fmt: skip


@pytest.mark.parametrize(
    ("told", "rests"),
    [
        ([WAITS, WAITS], True),
        ([WAITS, TRAINS], False),
        ([WAITS, IDLE], True),
        ([IDLE, IDLE], False),  # no kernel runs: the rank does something else
        ([WAITS, {}], True),  # one is split, and tells no use
        ([{}], False),
        ([], False),
    ],
)
def test_gpus_rest_if_kernels_run_and_no_memory_moves(
    told: list[dict[str, int]],
    rests: bool,  # noqa: FBT001
) -> None:
    assert gpus.rest([gpu(index, **one) for index, one in enumerate(told)]) is rests


def test_only_the_gpus_of_a_rank_tell_of_it() -> None:
    all_of_node = [gpu(0, pids=[1]), gpu(1, pids=[2, 3]), gpu(2)]
    assert [one.number for one in gpus.of_processes(all_of_node, {3})] == [1]
    # A container's processes have other numbers there.
    assert [one.number for one in gpus.of_processes(all_of_node, {9}, ["GPU-2"])] == [2]
    assert len(gpus.of_processes(all_of_node, {9})) == 3


@pytest.mark.parametrize(
    ("told", "computes"),
    [
        ({"pids": [1], **TRAINS}, True),
        ({"pids": [1, 2], **TRAINS}, True),  # two ranks share it
        ({"pids": [1, 3], **TRAINS}, False),  # another run's may be what moves
        ({"pids": [2], **TRAINS}, False),
        ({"pids": [1], **WAITS}, False),  # a kernel of NCCL polls
        ({"pids": None, **TRAINS}, False),
        ({"pids": [1]}, False),
    ],
)
def test_a_gpu_computes_if_memory_moves_for_its_rank_alone(
    told: dict[str, object],
    computes: bool,  # noqa: FBT001
) -> None:
    assert gpus.compute([gpu(**told)], {1}, {1, 2}) is computes
