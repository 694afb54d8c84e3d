"""The filter of log lines: ranks, time and pattern."""

import re

from clusterctl.logs.entry import Entry, Piece, Source
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass

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
