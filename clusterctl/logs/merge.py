"""Lines of many nodes in the order of their times, held back no longer than asked."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clusterctl.logs.entry import Entry

HELD_LIMIT = 64 * 1024 * 1024
"""Bytes of lines held back at most; beyond, the oldest go on without waiting."""


@dataclass(order=True, slots=True)
class _Held:
    """Lines of one node that came together."""

    time: float
    number: int
    arrived: float = field(compare=False)
    entries: Sequence[Entry] = field(compare=False)
    size: int = field(compare=False)


class Merger:
    """Orders the entries of several nodes by time; each node's own order is never changed."""

    def __init__(self, nodes: Iterable[str], *, patience: float) -> None:
        """Wait for the slowest node, but let no line wait longer than `patience` seconds."""
        self._last: dict[str, float] = dict.fromkeys(nodes, float("-inf"))
        self._patience = patience
        self._heap: list[_Held] = []
        self._arrivals: dict[int, float] = {}
        self._bytes = 0
        self._numbers = itertools.count()

    def open(self, node: str) -> None:
        """Expect lines of a node, from now on."""
        self._last.setdefault(node, float("-inf"))

    def add(self, entries: Sequence[Entry], *, now: float) -> None:
        """Take the next entries of one node, which came together; `now` is a monotonic clock's."""
        if not entries:
            return
        node = entries[0].source.node
        # A node's own order wins over a clock that was set back.
        time = max(entries[0].time, self._last.get(node, float("-inf")))
        self._last[node] = time
        size = entries[-1].line.end - entries[0].line.begin
        held = _Held(time, next(self._numbers), now, entries, size)
        heapq.heappush(self._heap, held)
        self._arrivals[held.number] = now
        self._bytes += size

    def close(self, node: str) -> None:
        """The node sends no more; nothing waits for it."""
        self._last.pop(node, None)

    def ready(self, *, now: float) -> list[Entry]:
        """Return the entries that no later one can come before, or that waited long enough."""
        low = min(self._last.values(), default=float("inf"))
        out: list[Entry] = []
        while self._heap and (
            self._heap[0].time <= low
            or self._oldest_arrival() <= now - self._patience
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

    def _oldest_arrival(self) -> float:
        # Numbers rise with arrival, and a dict keeps them in that order.
        return next(iter(self._arrivals.values()))

    def _pop(self) -> Sequence[Entry]:
        held = heapq.heappop(self._heap)
        del self._arrivals[held.number]
        self._bytes -= held.size
        return held.entries
