"""Lines of many nodes in the order of their times, held back no longer than asked."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from clusterctl.logs.entry import Entry

HELD_LIMIT = 32 * 1024 * 1024
"""Bytes of lines held back at most; beyond, the oldest go on without waiting."""
ENTRY_BYTES = 400
"""What a line takes in memory beside its own bytes."""


class _Held:
    """Lines of one node that came together."""

    __slots__ = ("arrived", "entries", "shown", "size")

    def __init__(self, arrived: float, entries: Sequence[Entry]) -> None:
        self.arrived = arrived
        self.entries = entries
        self.size = entries[-1].line.end - entries[0].line.begin + ENTRY_BYTES * len(entries)
        self.shown = False


class Merger:
    """Orders the entries of several nodes by time; each node's own order is never changed.

    What it does for a message costs the same for two nodes as for thousands.
    """

    def __init__(self, nodes: Iterable[str], *, patience: float) -> None:
        """Wait for the slowest node, but let no line wait longer than `patience` seconds."""
        self._last: dict[str, float] = {}
        self._slowest: list[tuple[float, str]] = []
        """A heap of the open nodes and their last times, which may be older than `_last`'s."""
        self._patience = patience
        self._heap: list[tuple[float, int, _Held]] = []
        self._arrivals: deque[_Held] = deque()
        """In order of arrival; those that were shown are dropped when they come first."""
        self._bytes = 0
        self._numbers = itertools.count()
        for node in nodes:
            self.open(node)

    def open(self, node: str) -> None:
        """Expect lines of a node, from now on."""
        if node not in self._last:
            self._last[node] = float("-inf")
            heapq.heappush(self._slowest, (float("-inf"), node))

    def add(self, entries: Sequence[Entry], *, now: float) -> None:
        """Take the next entries of one node, which came together; `now` is a monotonic clock's."""
        if not entries:
            return
        node = entries[0].source.node
        self.open(node)
        # A node's own order wins over a clock that was set back.
        time = self._last[node] = max(entries[0].time, self._last[node])
        held = _Held(now, entries)
        heapq.heappush(self._heap, (time, next(self._numbers), held))
        self._arrivals.append(held)
        self._bytes += held.size

    def close(self, node: str) -> None:
        """The node sends no more; nothing waits for it."""
        self._last.pop(node, None)

    def ready(self, *, now: float) -> list[Entry]:
        """Return the entries that no later one can come before, or that waited long enough."""
        out: list[Entry] = []
        if not self._heap:
            return out
        low = self._low()
        while self._heap and (
            self._heap[0][0] <= low
            or self._arrivals[0].arrived <= now - self._patience
            or self._bytes > HELD_LIMIT
        ):
            out += self._pop()
        return out

    def flush(self) -> list[Entry]:
        """Return everything that is left, in order."""
        out: list[Entry] = []
        while self._heap:
            out += self._pop()
        return out

    def _low(self) -> float:
        """Return the time that every open node has reached."""
        while self._slowest:
            time, node = self._slowest[0]
            last = self._last.get(node)
            if last == time:
                return time
            if last is None:
                heapq.heappop(self._slowest)
            else:
                heapq.heapreplace(self._slowest, (last, node))
        return float("inf")

    def _pop(self) -> Sequence[Entry]:
        _, _, held = heapq.heappop(self._heap)
        held.shown = True
        while self._arrivals and self._arrivals[0].shown:
            self._arrivals.popleft()
        self._bytes -= held.size
        entries, held.entries = held.entries, ()
        return entries
