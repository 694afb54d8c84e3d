"""Notices that this process did not run: the machine slept, or the process was stopped."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.transport.local_limits import start_thread

ASLEEP = "asleep"
"""The phase of a node that was lost while this process did not run."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that counts sleep: macOS has it under the second name."""
_TICK, _MISSED = 0.5, 5.0
"""Seconds between two signs of life, and how late one is if this process did not run."""
_NODE_LOST = frozenset({"unreachable", "timeout", "lost"})


class Awake:
    """Looks at the clock again and again, from a thread of its own."""

    def __init__(self, closed: threading.Event) -> None:
        """Prepare; `closed` ends the thread."""
        self._closed = closed
        self._lock = threading.Lock()
        self._last = 0.0
        """The last sign of life; 0: none yet."""
        self._slept = 0.0

    def now(self) -> float:
        """Return how long this process did not run until now, by all that is known."""
        with self._lock:
            if not self._last:
                self._last = _time()
                with suppress(CouldNotTell):  # then no sleep is noticed
                    start_thread(self._watch, name="awake")
            late = _time() - self._last
            return self._slept + (late if late > _MISSED else 0)

    def blame(self, failure: NodeError, before: float) -> NodeError:
        """Return what to report of a node that was lost; it is not to blame if we slept.

        `before`: what `now` returned when it was still there.
        """
        slept = self.now() - before
        if failure.state not in _NODE_LOST or failure.answered or slept <= 0:
            return failure
        words = f"this machine slept, or this process was stopped, for {slept:.0f} s meanwhile"
        said, hint = f"{words}: {failure.message}", "type the command again"
        return NodeError(failure.state, ASLEEP, said, hint, node=failure.node)

    def _watch(self) -> None:
        while not self._closed.wait(_TICK):
            with self._lock:
                late = _time() - self._last
                self._slept += late if late > _MISSED else 0
                self._last = _time()


def _time() -> float:
    return time.clock_gettime(_CLOCK)
