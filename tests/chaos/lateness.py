"""How late a busy machine makes what runs on it, and what that excuses."""

from __future__ import annotations

import time

IDLE = 2.0
"""Seconds beyond the documented time that an idle machine gets."""
FACTOR = 4.0
"""A run's end is a chain of several processes, each of which is as late as the one measured."""


def slack(late: float) -> float:
    """Return the seconds beyond the documented time that this lateness excuses."""
    return IDLE + FACTOR * late


def lateness(passed: float, slept: float, computed: float) -> float:
    """Return how long a process waited for its turn.

    Args:
        passed: seconds of the clock.
        slept: of these asked for as sleep.
        computed: of these on a CPU.
    """
    return max(0.0, passed - slept - computed)


class Meter:
    """Adds up how late this process is."""

    def __init__(self) -> None:
        """Begin at zero, now."""
        self.late = 0.0
        self._now, self._computed = _clocks()

    def lap(self, slept: float) -> None:
        """Take the time since the last lap, in which this process asked for so much sleep."""
        now, computed = _clocks()
        self.late += lateness(now - self._now, slept, computed - self._computed)
        self._now, self._computed = now, computed

    def skip(self) -> None:
        """Leave out the time since the last lap: this process waited for another."""
        self._now, self._computed = _clocks()


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.process_time()
