"""Merges the lines of many nodes in order of time, with a limited delay."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from clusterctl.logs.entry import Piece

HELD_LIMIT = 32 * 1024 * 1024
"""Most bytes of lines to hold back; beyond, the oldest lines are released early."""
PIECE_BYTES = 1000
"""Memory overhead of a piece, in bytes."""


class _Held:
    """A piece that waits."""

    __slots__ = ("arrived", "piece", "size")

    def __init__(self, arrived: float, piece: Piece) -> None:
        self.arrived = arrived
        self.piece: Piece | None = piece
        self.size = len(piece.chunk.data) + PIECE_BYTES


class Merger:
    """Orders the pieces of several nodes by time; each node's own order is never changed.

    The cost per message does not grow with the number of nodes.
    """

    def __init__(self, nodes: Iterable[str], *, patience: float) -> None:
        """Wait for the slowest node, but delay no line longer than `patience` seconds."""
        self._last: dict[str, float] = {}
        self._slowest: list[tuple[float, str]] = []
        """A heap of the open nodes and their last times, which may be older than `_last`'s."""
        self._patience = patience
        self._heap: list[tuple[float, int, _Held]] = []
        self._arrivals: deque[_Held] = deque()
        """In order of arrival; those already released are dropped when they are first."""
        self._bytes = 0
        self._numbers = itertools.count()
        for node in nodes:
            self.open(node)

    def open(self, node: str) -> None:
        """Expect lines of a node, from now on."""
        if node not in self._last:
            self._last[node] = float("-inf")
            heapq.heappush(self._slowest, (float("-inf"), node))

    def add(self, piece: Piece, *, now: float) -> None:
        """Add the next piece of a node; `now` is the time of a monotonic clock."""
        node = piece.source.node
        self.open(node)
        # The node's own order counts, also if its clock was set back.
        time = self._last[node] = max(piece.time, self._last[node])
        held = _Held(now, piece)
        heapq.heappush(self._heap, (time, next(self._numbers), held))
        self._arrivals.append(held)
        self._bytes += held.size

    def close(self, node: str) -> None:
        """Expect no more lines of a node."""
        self._last.pop(node, None)

    def ready(self, *, now: float) -> Iterator[Piece]:
        """Yield the pieces that are in order for sure, or that waited long enough.

        Pieces that the caller does not take stay for the next call.
        """
        low = self._low() if self._heap else 0.0
        while self._heap and (
            self._heap[0][0] <= low
            or self._arrivals[0].arrived <= now - self._patience
            or self._bytes > HELD_LIMIT
        ):
            yield self._pop()

    def flush(self) -> Iterator[Piece]:
        """Yield everything that is left, in order."""
        while self._heap:
            yield self._pop()

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

    def _pop(self) -> Piece:
        _, _, held = heapq.heappop(self._heap)
        piece, held.piece = held.piece, None
        assert piece is not None, "it is shown once"
        while self._arrivals and self._arrivals[0].piece is None:
            self._arrivals.popleft()
        self._bytes -= held.size
        return piece
