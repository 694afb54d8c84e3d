"""Who is slow: which rank takes longer than the others for its own part, and by data or compute.

Collectives make all ranks equally slow on the clock. What differs is how long each waits in
them: a rank that the others wait for hardly waits itself. So a rank's own time is the wall time
less what it waited more than the one that waited least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median_low
from typing import Literal

Cause = Literal["data", "compute"]
BACKWARD = 2.0
"""A backward pass takes about twice its forward pass."""
LEAST = 0.005
"""Seconds a step: what is shorter is the machine's own noise."""
IN_A_ROW = 2
"""So many windows must agree: one slow window is no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one rank measured over some steps, in seconds."""

    steps: int
    wall: float
    data: float
    """Waiting for the next batch."""
    forward: float
    waited: float | None
    """In collectives; None if they cannot be seen (DDP's are inside its backward pass)."""
    padded_tokens: int
    """Tokens it computed on, padding counted: its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank that keeps the others waiting."""

    rank: int
    ratio: float
    """Its own time against the median."""
    cause: Cause


def slow_ranks(windows: Sequence[Window], ratio: float) -> tuple[Slow, ...]:
    """Return the ranks whose own time is `ratio` times the median or more, slowest first."""
    own = own_times(windows)
    usual = median_low(own)
    usual_data = median_low(window.data for window in windows)
    work = mean(window.padded_tokens for window in windows)
    found = []
    for rank, window in enumerate(windows):
        excess = own[rank] - usual
        by_data = window.data - usual_data
        cause: Cause = "data" if by_data > excess / 2 else "compute"
        times = own[rank] / usual if usual else 1.0
        if cause == "compute" and window.padded_tokens > work:  # more work is no slowness
            times = min(times, times * work / window.padded_tokens)
        if times >= ratio and excess > LEAST * window.steps:
            found.append(Slow(rank=rank, ratio=times, cause=cause))
    return tuple(sorted(found, key=lambda slow: -slow.ratio))


def own_times(windows: Sequence[Window]) -> list[float]:
    """Return each rank's time for its own part."""
    waits = [window.waited for window in windows if window.waited is not None]
    if len(waits) < len(windows):
        return [window.data + (1 + BACKWARD) * window.forward for window in windows]
    return [
        window.wall - ((window.waited or 0.0) - min(waits)) if window.wall else 0.0
        for window in windows
    ]


class Watch:
    """Remembers the last windows: only who is slow in several in a row is named."""

    def __init__(self, ratio: float) -> None:
        """Name ranks from `ratio` times the median on."""
        self._ratio = ratio
        self._last: list[tuple[Slow, ...]] = []

    def see(self, windows: Sequence[Window]) -> tuple[Slow, ...]:
        """Take the ranks' newest windows; return who is slow now, and was before."""
        if len(windows) < 2:  # noqa: PLR2004  (nothing to compare with)
            return ()
        now = slow_ranks(windows, self._ratio)
        self._last = [*self._last, now][-IN_A_ROW:]
        if len(self._last) < IN_A_ROW:
            return ()
        always = set.intersection(*({slow.rank for slow in window} for window in self._last))
        return tuple(slow for slow in now if slow.rank in always)
