"""A GPU alone: the same code on a CPU, and marked `gpu` on a real one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.probe.trial import device_time, gpu_trial
from clusterctl.node.probe.trial.gpu_trial import PERIOD, SIZE, tiles, try_gpu
from clusterctl.node.probe.trial.job_ladder import is_right, run_each
from tests.lazy_torch import torch

CUDA = pytest.param("cuda:0", marks=pytest.mark.gpu)


def try_in_child(device: str) -> dict[str, Any]:
    """Try a device in a child, as the check does: this process must not hold the GPU.

    With one CPU thread: a fork does not have the threads that torch started for an earlier test.
    """

    def alone() -> dict[str, Any]:
        torch.set_num_threads(1)
        return try_gpu(device)

    return run_each({"0": alone}, 120.0)["0"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU compute little: the first test below has it compute as much as the check does."""
    monkeypatch.setitem(SIZE, "cpu", 2 * PERIOD)
    monkeypatch.setitem(gpu_trial.COPIED, "cpu", 1 << 16)


@pytest.mark.parametrize("size", SIZE.values())
def test_bfloat16_holds_the_known_product_exactly(size: int) -> None:
    left, right, product = tiles(size)
    times = size // PERIOD

    assert size % PERIOD == 0
    assert product[3][5] == times * sum(left[3][k] * right[k][5] for k in range(PERIOD))
    largest = max(abs(number) // times for row in product for number in row)
    assert 0 < largest < 1 << 8  # bits of bfloat16's mantissa
    assert times & (times - 1) == 0


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_sound_device_computes_right_and_tells_its_speed(device: str) -> None:
    found = try_in_child(device)

    assert (found["state"], is_right(found)) == ("ok", True), found
    assert found["tflops"] > 0 < found["memory_gb_s"]


@pytest.mark.torch
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_one_wrong_number_of_a_product_is_seen(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Any = torch.Tensor.__matmul__

    def wrong(left: Any, other: Any) -> Any:
        product = right(left, other)
        product[7, 9] += 8 * SIZE[left.device.type] / PERIOD  # as a flipped bit
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    found = try_in_child(device)

    assert (found["wrong_numbers"], found["wrong_copies"]) == (1, 0)
    assert not is_right(found)


@pytest.mark.torch
@pytest.mark.usefixtures("small")
def test_one_wrong_number_of_a_copy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = torch.Tensor.copy_

    def wrong(target: Any, source: Any) -> Any:
        right(target, source)
        target[-1] ^= 1
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", wrong)
    found = try_in_child("cpu")

    assert (found["wrong_numbers"], found["wrong_copies"]) == (0, 1)


@pytest.mark.torch
def test_what_torch_says_of_a_gpu_that_is_not_there_is_told() -> None:
    found = try_in_child("cuda:77")

    assert found["state"] == "error"
    assert "CUDA" in found["error"]


@pytest.mark.torch
@pytest.mark.gpu
def test_a_gpu_without_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_trial.COPIED, "cuda", 1 << 45)
    found = try_in_child("cuda:0")

    assert found["state"] == "error"
    assert "out of memory" in found["error"]


@pytest.mark.torch
@pytest.mark.gpu
def test_a_gpu_is_as_fast_in_a_second_trial() -> None:
    """The first one finds it idle, with its clocks down."""
    first, second = try_in_child("cuda:0"), try_in_child("cuda:0")

    assert second["tflops"] == pytest.approx(first["tflops"], rel=0.1)
    assert second["memory_gb_s"] == pytest.approx(first["memory_gb_s"], rel=0.1)


@pytest.mark.torch
def test_a_device_works_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    monkeypatch.setitem(device_time.WARM_SECONDS, "cpu", 0.3)
    device_time.warm_up(torch, torch.device("cpu"), lambda: began.append(time.monotonic()))

    assert len(began) > 1
    assert began[-1] - began[0] > 0.2


def test_a_child_that_hangs_dies_or_chatters_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang() -> dict[str, Any]:
        while True:
            pass

    def die() -> dict[str, Any]:
        os.write(2, b"NCCL watchdog: giving up\n")
        os.abort()

    def chatter() -> dict[str, Any]:
        os.write(1, b"NCCL version 2.27.3\n")
        threading.Timer(0.05, os.write, (1, b"n1:7:9 [0] NCCL INFO comm 0x1 Destroy\n")).start()
        return {"right": True}

    def wait() -> dict[str, Any]:
        assert os.environ["NCCL_DEBUG"] == "INFO"  # whatever the user's own is
        with open(os.environ["NCCL_DEBUG_FILE"], "w") as nccl:  # noqa: PTH123  (as NCCL does)
            nccl.write("n1:7:8 [0] NCCL INFO Using network Socket\n")
        return hang()

    work = {"hang": hang, "die": die, "chatter": chatter, "wait": wait}
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "of-a-run"))
    found = run_each(work, 3.0)

    assert found["hang"] == {"state": "timeout", "error": "no answer within 3 s"}
    assert found["die"] == {"state": "error", "error": "NCCL watchdog: giving up"}
    assert found["chatter"] == {"state": "ok", "right": True, "nccl": ["NCCL version 2.27.3"]}
    assert found["wait"] == {**found["hang"], "nccl": ["NCCL INFO Using network Socket"]}
    assert list(tmp_path.iterdir()) == []
