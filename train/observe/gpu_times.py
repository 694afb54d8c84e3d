"""How long work takes on a GPU, idle moments included, by events in its own queue.

The CPU only queues the work: by its clock a forward pass takes what it takes to queue it, and the
part that waits for a result takes all the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Event(Protocol):
    """What is needed of a `torch.cuda.Event` with timing."""

    def record(self) -> None:
        """Queue it behind the work so far."""

    def query(self) -> bool:
        """Return whether the GPU has reached it."""

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to another one."""


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class GpuTimes:
    """Adds up the time of each part, and never waits for the GPU."""

    def __init__(self, event: Callable[[], Event] = _event) -> None:
        self._event = event
        self._queued: deque[tuple[str, Event, Event]] = deque()

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure the work that is queued within."""
        begin, end = self._event(), self._event()
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._queued.append((name, begin, end))

    def take(self) -> dict[str, float]:
        """Return the seconds of each part that the GPU has done; the rest comes with a later take.

        So the update of a step is counted with the step after it.
        """
        found: dict[str, float] = {}
        while self._queued and self._queued[0][2].query():
            name, begin, end = self._queued.popleft()
            found[name] = found.get(name, 0.0) + begin.elapsed_time(end) / 1000
        return found
