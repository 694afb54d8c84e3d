"""Lets a small program take its CUDA branch: what it puts on `cuda` is on the CPU."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FREE_BYTES = 64 << 20
"""Of a GPU's memory: programs that use all there is stay quick."""


class OnCpu(TorchFunctionMode):
    """Replaces the device `cuda` in all calls of torch; of this thread only."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(on_cpu, args), **named)


def on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU, and anything else as it is."""
    return (
        torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value
    )


class Event:
    """A moment, as a CUDA event records it."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: all work has ended."""

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def pretend(count: int) -> None:
    """Show this process so many GPUs; `interposed.install` has `set_device`."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: count
    cuda.Event = Event
    cuda.synchronize = lambda *_: None
    cuda.mem_get_info = lambda *_: (FREE_BYTES, FREE_BYTES)
    OnCpu().__enter__()  # type: ignore[no-untyped-call]
