"""The parts of a step as a GPU did them, not as the CPU queued them."""

from __future__ import annotations

import pytest

from train.observe.gpu_times import Event, GpuTimes


class Gpu:
    """Reaches events later than they are queued."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reached = 0.0


class Queued:
    """An event of this GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = self._gpu.now

    def query(self) -> bool:
        return self.at <= self._gpu.reached

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, Queued)
        assert end.query(), "torch raises for an event that the GPU has not reached"
        return end.at - self.at


def test_parts_are_counted_once_the_gpu_has_done_them() -> None:
    gpu = Gpu()
    times = GpuTimes(lambda: Queued(gpu))
    for _ in range(2):
        with times.time("forward"):
            gpu.now += 100  # milliseconds of queued work; the CPU does not wait
        with times.time("backward"):
            gpu.now += 200
    with times.time("optimizer"):
        gpu.now += 50
    gpu.reached = 600
    assert times.take() == {"forward": 0.2, "backward": 0.4}
    assert times.take() == {}
    gpu.reached = gpu.now
    assert times.take() == {"optimizer": 0.05}


def test_a_part_that_fails_is_measured_all_the_same() -> None:
    gpu = Gpu()
    times = GpuTimes(lambda: Queued(gpu))
    with pytest.raises(MemoryError), times.time("forward"):
        raise MemoryError
    gpu.reached = gpu.now
    assert times.take() == {"forward": 0.0}
