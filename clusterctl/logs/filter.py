"""The filter of log lines: ranks, time and pattern."""

import re

from clusterctl.logs.entry import Entry, Piece
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The conditions on a line; None matches any line."""

    ranks: frozenset[int] | None = None
    """Only these ranks, without launchers."""
    since: float | None = None
    """Only lines written at this time or later, seconds since 1970."""
    pattern: re.Pattern[str] | None = None

    def passes(self, piece: Piece) -> bool:
        """Tell whether the rank and time of a piece match."""
        if self.ranks is not None and piece.source.rank not in self.ranks:
            return False
        return self.since is None or piece.time >= self.since

    def matching(self, entries: list[Entry]) -> list[Entry]:
        """Return the lines that match the pattern."""
        pattern = self.pattern
        if pattern is None:
            return entries
        return [entry for entry in entries if pattern.search(strip_controls(entry.line.text))]
