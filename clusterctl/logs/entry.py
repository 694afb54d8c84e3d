"""A log line with its source and time, and the prefix that it is shown with."""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.logs import ranks
from clusterctl.logs.lines import Chunk, Line


class Source(NamedTuple):
    """One log file of a run."""

    node: str
    rank: int | None = None
    """Global rank; None: the node's launcher."""


class Piece(NamedTuple):
    """Whole lines of one source that arrived together."""

    source: Source
    chunk: Chunk
    time: float
    """Unix time on the master's clock when they were written, or else arrived."""

    def entries(self) -> list[Entry]:
        """Return its lines."""
        source, chunk, time = self
        return [Entry(source, line, time) for line in chunk.lines()]

    def uncut(self) -> list[Entry]:
        """Return it as one entry, for raw output."""
        begin, data = self.chunk
        return [Entry(self.source, Line(begin, self.chunk.end, data, ""), self.time)]


class Entry(NamedTuple):
    """One line of one source; a named tuple, since logs have millions."""

    source: Source
    line: Line
    time: float
    """The time of its piece."""


class Folded(NamedTuple):
    """One line that one or more ranks wrote within one window."""

    sources: tuple[Source, ...]
    line: Line
    """The first of the equal lines."""
    time: float

    @property
    def label(self) -> str:
        """The prefix: `host:rank`, `host:0-3`, `*:0-31` for several hosts, a launcher's `host`."""
        nodes = {source.node for source in self.sources}
        where = nodes.pop() if len(nodes) == 1 else "*"
        found = [source.rank for source in self.sources if source.rank is not None]
        return f"{where}:{ranks.fold_ranks(found)}" if found else where
