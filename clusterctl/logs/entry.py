"""A line of a run, with where and when it came from; and the prefix it is shown with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clusterctl.logs import ranks
from clusterctl.logs.lines import Chunk, Line


class Source(NamedTuple):
    """One log file of a run."""

    node: str
    rank: int | None = None
    """Global rank; None: the node's launcher."""


class Piece(NamedTuple):
    """Whole lines of one source that came together."""

    source: Source
    chunk: Chunk
    time: float
    """Seconds since 1970 on the master's clock: when they were written, or else arrived."""

    def entries(self) -> list[Entry]:
        """Cut it into its lines."""
        source, chunk, time = self
        return [Entry(source, line, time) for line in chunk.lines()]

    def uncut(self) -> list[Entry]:
        """Return it as if it were one line, for output that shows its bytes as they are."""
        begin, data = self.chunk
        return [Entry(self.source, Line(begin, self.chunk.end, data, ""), self.time)]


class Entry(NamedTuple):
    """One line of one source; a named tuple, since logs have millions."""

    source: Source
    line: Line
    time: float
    """Its piece's."""


class Folded(NamedTuple):
    """One line that several ranks wrote alike within one window."""

    sources: tuple[Source, ...]
    line: Line
    """The first of the equal lines."""
    time: float

    @property
    def label(self) -> str:
        """The prefix: `host:rank`, `host:0-3`, `*:0-31` for several hosts, a launcher's `host`."""
        return label(self.sources)


def label(sources: Iterable[Source]) -> str:
    """Name the sources of a line shortly."""
    given = tuple(sources)
    nodes = sorted({source.node for source in given})
    where = nodes[0] if len(nodes) == 1 else "*"
    found = [source.rank for source in given if source.rank is not None]
    return f"{where}:{ranks.fold_ranks(found)}" if found else where
