"""How long this rank waits in collectives: on the CPU by the clock, on a GPU by its own events.

FSDP offers no hook for this that covers gathering and reducing alike, so the public functions of
torch.distributed that it calls are wrapped while a training runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from train.observe.gpu_times import GpuTimes

NAMES = (
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_reduce",
)
"""What FSDP2 calls, under the names of several versions of torch."""


class CollectiveClock:
    """Adds up the time in collectives while it is counting."""

    def __init__(self) -> None:
        """Wrap torch.distributed's functions; `close` puts them back."""
        self.counting = False
        self._seconds = 0.0
        self._gpu = GpuTimes()
        self._originals = {name: getattr(dist, name) for name in NAMES if hasattr(dist, name)}
        for name, original in self._originals.items():
            setattr(dist, name, self._timed(original))

    def take(self) -> float:
        """Return the seconds since the last take, of a GPU's collectives those that are done."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds + sum(self._gpu.take().values())

    def close(self) -> None:
        """Put torch.distributed's own functions back."""
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.counting:
                return original(*args, **kwargs)
            tensor = args[0] if args else next(iter(kwargs.values()))
            if tensor.is_cuda:
                with self._gpu.time(original.__name__):
                    return original(*args, **kwargs)
            began = time.perf_counter()
            answer = original(*args, **kwargs)
            self._seconds += time.perf_counter() - began
            return answer

        return wrapper
