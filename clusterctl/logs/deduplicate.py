"""Shows equal lines of many ranks once, and updates progress bars at most once a second."""

import bisect
from collections import deque
from typing import Protocol

from clusterctl.logs.entry import Entry, Folded, Source
from clusterctl.logs.torchrun import TorchrunNoise

WINDOW = 0.06
"""Seconds to collect lines before they are shown."""
WINDOW_LINES = 4096
"""Lines collected at most."""
ALIKE_WITHIN = 1.0
"""Equal lines of different ranks are folded if written within this many seconds."""
UPDATE_PERIOD = 1.0
"""Seconds between two shown updates of a progress bar that overwrites itself."""


class LineSink(Protocol):
    """Decides which lines are shown, and when."""

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry; `now` is a monotonic clock's."""

    def ready(self, *, now: float) -> list[Folded]:
        """Return the lines to show now."""

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return all lines that are left; `finished`: the run succeeded on every node."""


class PassThrough:
    """Shows every line at once, unfolded."""

    def __init__(self) -> None:
        self._lines: list[Folded] = []

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry."""
        del now
        self._lines.append(Folded((entry.source,), entry.line, entry.time))

    def ready(self, *, now: float) -> list[Folded]:
        """Return the lines added since the last call."""
        del now
        return self.flush()

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return the lines added since the last call."""
        del finished
        lines = self._lines
        self._lines = []
        return lines


class LastLines:
    """Shows only the last lines, at the end."""

    def __init__(self, sink: LineSink, count: int) -> None:
        """Show the last `count` lines of those that `sink` returns."""
        self._sink = sink
        self._lines: deque[Folded] = deque(maxlen=count)

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry."""
        self._sink.add(entry, now=now)

    def ready(self, *, now: float) -> list[Folded]:
        """Return nothing yet."""
        self._lines.extend(self._sink.ready(now=now))
        return []

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return the last lines."""
        self._lines.extend(self._sink.flush(finished=finished))
        return list(self._lines)


class LineDeduplicator:
    """Folds equal lines of different ranks; the lines of each rank stay in order."""

    def __init__(self) -> None:
        self._lines: list[tuple[list[Source], Entry]] = []
        """Each line of the window: its sources and its first entry."""
        self._places: dict[bytes, list[int]] = {}
        self._reached: dict[Source, int] = {}
        self._opened = 0.0
        self._shown: dict[Source, float] = {}
        self._torchrun = TorchrunNoise()

    def add(self, entry: Entry, *, now: float) -> None:
        """Take the next entry; `now` is a monotonic clock's."""
        for passed in self._torchrun.take(entry, now=now):
            self._add(passed, now)

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
        """Return the lines of the window when it is over."""
        for entry in self._torchrun.overdue(now=now):
            self._add(entry, now)
        over = now - self._opened >= WINDOW or len(self._lines) >= WINDOW_LINES
        return self._window() if self._lines and over else []

    def flush(self, *, finished: bool = False) -> list[Folded]:
        """Return all lines that are left."""
        for entry in self._torchrun.flush(finished=finished):
            self._add(entry, self._opened)
        return self._window()

    def _window(self) -> list[Folded]:
        """Return the lines of the window and begin a new one."""
        lines = self._lines
        self._lines = []
        self._places = {}
        self._reached = {}
        return [Folded(tuple(sources), first.line, first.time) for sources, first in lines]

    def _alike(self, entry: Entry) -> int | None:
        """Return the index of an equal line after the source's last one; None if there is none."""
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
