"""A log line with its source, its time and its prefix, and the filter of the lines to show."""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterctl.logs import ranks
from clusterctl.logs.lines import Chunk, Line
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass


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


_ATTEMPT = re.compile(rb"^attempt \d+ of \d+, from ", re.MULTILINE)
"""With which the supervisor begins another attempt, in the launcher's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The conditions on a line; None matches any line."""

    ranks: frozenset[int] | None = None
    """Only these ranks, without launchers."""
    attempts: bool = False
    """Even so, the lines with which further attempts of the run begin."""
    since: float | None = None
    """Only lines written at this time or later, seconds since 1970."""
    pattern: re.Pattern[str] | None = None

    def passes(self, piece: Piece) -> bool:
        """Tell whether the rank and time of a piece match."""
        if self._is_launcher(piece.source):
            if not self.attempts or _ATTEMPT.search(piece.chunk.data) is None:
                return False
        elif self.ranks is not None and piece.source.rank not in self.ranks:
            return False
        return self.since is None or piece.time >= self.since

    def matching(self, entries: list[Entry]) -> list[Entry]:
        """Return the lines that match the pattern."""
        if entries and self._is_launcher(entries[0].source):  # they are of one piece
            entries = [entry for entry in entries if _ATTEMPT.match(entry.line.data)]
        pattern = self.pattern
        if pattern is None:
            return entries
        return [entry for entry in entries if pattern.search(strip_controls(entry.line.text))]

    def _is_launcher(self, source: Source) -> bool:
        """Tell whether these are lines of a launcher, although only ranks are wanted."""
        return self.ranks is not None and source.rank is None
