"""Equal lines that many ranks write at once, shown once; and progress bars, shown now and then."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Protocol

from clusterctl.logs.entry import Entry, Folded, Source
from clusterctl.logs.torchrun import TorchrunNoise

WINDOW = 0.06
"""Seconds that lines are collected before they are shown."""
WINDOW_LINES = 4096
"""Lines collected at most."""
ALIKE_WITHIN = 1.0
"""Equal lines of different ranks are one when written within this many seconds."""
UPDATE_PERIOD = 1.0
"""A progress bar that overwrites itself is shown at most this often, in seconds."""


class LineSink(Protocol):
    """Decides what is shown of the lines that come, and when."""

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry; `now` is a monotonic clock's."""

    def ready(self, *, now: float) -> list[Folded]:
        """Return what is to be shown now."""

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return all that was not shown yet; `finished`: the run has ended well, on every node."""


class PassThrough:
    """Shows every line by itself, at once."""

    def __init__(self) -> None:
        self._lines: list[Folded] = []

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry."""
        del now
        self._lines.append(Folded((entry.source,), entry.line, entry.time))

    def ready(self, *, now: float) -> list[Folded]:
        """Return what came since."""
        del now
        return self.flush()

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return what came since."""
        del finished
        lines = self._lines
        self._lines = []
        return lines


class LastLines:
    """Shows only the last lines, once all have come."""

    def __init__(self, shower: LineSink, count: int) -> None:
        """Show the last `count` of what `shower` would show."""
        self._shower = shower
        self._lines: deque[Folded] = deque(maxlen=count)

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry."""
        self._shower.add(entry, now=now)

    def ready(self, *, now: float) -> list[Folded]:
        """Return nothing yet."""
        self._lines.extend(self._shower.ready(now=now))
        return []

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return the last lines."""
        self._lines.extend(self._shower.flush(finished=finished))
        return list(self._lines)


class LineDeduplicator:
    """Folds equal lines of different ranks; the order of each rank's own lines is kept."""

    def __init__(self) -> None:
        self._lines: list[tuple[list[Source], Entry]] = []
        """Of each line to be shown who wrote it, and its first entry."""
        self._places: dict[bytes, list[int]] = {}
        self._reached: dict[Source, int] = {}
        self._opened = 0.0
        self._shown: dict[Source, float] = {}
        self._torchrun = TorchrunNoise()

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry; `now` is a monotonic clock's."""
        if entry.source.rank is None:
            for passed in self._torchrun.take(entry, now=now):
                self._add(passed, now)
        else:
            self._add(entry, now)

    def _add(self, entry: Entry, now: float) -> None:
        if entry.line.ending == "\r" and not self._update_due(entry.source, now):
            return
        if not self._lines:
            self._opened = now
        index = self._alike(entry)
        if index is None:
            index = len(self._lines)
            self._places.setdefault(entry.line.data, []).append(index)
            self._lines.append(([entry.source], entry))
        else:
            self._lines[index][0].append(entry.source)
        self._reached[entry.source] = index

    def ready(self, *, now: float) -> list[Folded]:
        """Return the window's lines once it is over."""
        for entry in self._torchrun.overdue(now=now):
            self._add(entry, now)
        over = now - self._opened >= WINDOW or len(self._lines) >= WINDOW_LINES
        return self._window() if self._lines and over else []

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return all that was not shown yet."""
        for entry in self._torchrun.flush(finished=finished):
            self._add(entry, self._opened)
        return self._window()

    def _window(self) -> list[Folded]:
        """Return the window's lines and begin a new one."""
        lines = self._lines
        self._lines = []
        self._places = {}
        self._reached = {}
        return [Folded(tuple(sources), first.line, first.time) for sources, first in lines]

    def _alike(self, entry: Entry) -> int | None:
        """Find an equal line behind the last one that this source wrote or shares."""
        places = self._places.get(entry.line.data, [])
        next_one = bisect.bisect_right(places, self._reached.get(entry.source, -1))
        if next_one == len(places):
            return None
        index = places[next_one]
        return index if abs(self._lines[index][1].time - entry.time) <= ALIKE_WITHIN else None

    def _update_due(self, source: Source, now: float) -> bool:
        if now - self._shown.get(source, float("-inf")) < UPDATE_PERIOD:
            return False
        self._shown[source] = now
        return True
