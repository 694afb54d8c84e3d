"""How long this rank waits in collectives: on the CPU by the clock, on a GPU by its own events.

FSDP offers no hook for this that covers gathering and reducing alike, so the public functions of
torch.distributed that it calls are wrapped while a training runs.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._originals = {name: getattr(dist, name) for name in NAMES if hasattr(dist, name)}
        for name, original in self._originals.items():
            setattr(dist, name, self._timed(original))

    def take(self) -> float:
        """Return the seconds since the last take."""
        seconds, self._seconds = self._seconds, 0.0
        events, self._events = self._events, []
        for before, after in events:
            after.synchronize()
            seconds += before.elapsed_time(after) / 1000
        return seconds

    def close(self) -> None:
        """Put torch.distributed's own functions back."""
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (as the original)
            if not self.counting:
                return original(*args, **kwargs)
            tensor = args[0] if args else next(iter(kwargs.values()))
            if tensor.is_cuda:
                before, after = (
                    torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                    for _ in range(2)
                )
                before.record()
                answer = original(*args, **kwargs)
                after.record()
                self._events.append((before, after))
                return answer
            began = time.perf_counter()
            answer = original(*args, **kwargs)
            self._seconds += time.perf_counter() - began
            return answer

        return wrapper
