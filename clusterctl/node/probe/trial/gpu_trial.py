"""One GPU alone, tried by the job's own torch: memory, a product whose result is known, copies.

The device is a parameter, so that the same code runs on a CPU.
"""

from __future__ import annotations

import random
import statistics
from typing import Any, Dict, List

from clusterctl.node.probe.trial.device_time import seconds_of, warm_up

PERIOD = 64
"""The matrices repeat after so many rows and columns, and so does their product."""
SIZE = {"cuda": 8192, "cpu": 512}
"""Rows of the matrices: multiples of the period."""
COPIED = {"cuda": 1 << 30, "cpu": 1 << 24}
"""Bytes of the block that is copied."""
ROUNDS = 16
"""Timed ones, of which the median counts."""


def try_gpu(name: str) -> Dict[str, Any]:
    """Return what the device did; torch's own error is raised.

    Args:
        name: as torch calls the device: `cuda:3`, `cpu`.
    """
    import torch  # noqa: PLC0415  (loaded before this process was forked)

    device = torch.device(name)
    found: Dict[str, Any] = {}
    torch.zeros(1, device=device)  # whatever is wrong with it, this says it best
    if device.type == "cuda":
        torch.cuda.set_device(device)
        free, _ = torch.cuda.mem_get_info(device)
        found["free_mib"] = free >> 20
    found.update(multiply(torch, device, SIZE[device.type]))
    found.update(copy(torch, device, COPIED[device.type]))
    return found


def multiply(torch: Any, device: Any, size: int) -> Dict[str, Any]:  # noqa: ANN401  (torch's)
    """Multiply matrices whose product is known exactly, in the numbers that training uses."""
    # Else partial sums may be rounded, and a right product differs.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    left, right, expected = (
        torch.tensor(tile, dtype=torch.bfloat16, device=device).repeat(
            size // PERIOD, size // PERIOD
        )
        for tile in tiles(size)
    )
    products: List[Any] = []

    def work() -> None:
        products[:] = [left @ right]

    wrong = 0
    seconds: List[float] = []
    warm_up(torch, device, work)
    for _ in range(ROUNDS):
        seconds.append(seconds_of(torch, device, work))
        wrong = max(wrong, int((products[0] != expected).sum().item()))
    tflops = 2 * size**3 / statistics.median(seconds) / 1e12
    return {"wrong_numbers": wrong, "tflops": tflops}


def tiles(size: int) -> List[List[List[int]]]:
    """Return the tiles that two matrices of `size` rows, and their product, consist of.

    The factors are -1, 0 and 1. Each number of the product is a multiple of size / PERIOD that is
    small enough for bfloat16 to hold it exactly, in whatever order it is summed.
    """
    draw = random.Random(1)  # noqa: S311  (equal on all GPUs)
    left, right = (
        [[draw.choice((-1, 0, 1)) for _ in range(PERIOD)] for _ in range(PERIOD)] for _ in "ab"
    )
    columns = list(zip(*right))
    times = size // PERIOD
    product = [
        [times * sum(a * b for a, b in zip(row, column)) for column in columns] for row in left
    ]
    return [left, right, product]


def copy(torch: Any, device: Any, size: int) -> Dict[str, Any]:  # noqa: ANN401  (torch's)
    """Copy a block within the device's memory; tell GB/s, and whether the copy is equal."""
    source = torch.arange(size // 8, dtype=torch.int64, device=device)
    target = torch.zeros_like(source)
    work = lambda: target.copy_(source)  # noqa: E731
    warm_up(torch, device, work)
    seconds = [seconds_of(torch, device, work) for _ in range(ROUNDS)]
    differing = int((target != source).sum().item())
    return {"wrong_copies": differing, "memory_gb_s": 2 * size / statistics.median(seconds) / 1e9}
