"""Which lines a person wants to see."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.logs.entry import Entry
from clusterctl.logs.sanitise import uncoloured


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What must hold of a line; None: anything."""

    ranks: frozenset[int] | None = None
    """Only these ranks; launchers are left out then."""
    since: float | None = None
    """Only lines written at this time or later, seconds since 1970."""
    pattern: re.Pattern[str] | None = None

    def passing(self, entries: list[Entry]) -> list[Entry]:
        """Return the lines that are wanted."""
        if self == EVERYTHING:
            return entries
        return [entry for entry in entries if self.passes(entry)]

    def passes(self, entry: Entry) -> bool:
        """Tell whether a line is wanted."""
        if self.ranks is not None and entry.source.rank not in self.ranks:
            return False
        if self.since is not None and entry.time < self.since:
            return False
        return self.pattern is None or bool(self.pattern.search(uncoloured(entry.line.text)))


EVERYTHING = Filter()
