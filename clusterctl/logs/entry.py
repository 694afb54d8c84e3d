"""A line of a run, with where and when it came from; and the prefix it is shown with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clusterctl.logs import ranks
from clusterctl.logs.lines import Line


class Source(NamedTuple):
    """One log file of a run."""

    node: str
    rank: int | None = None
    """Global rank; None: the node's launcher."""


class Entry(NamedTuple):
    """One line of one source; a named tuple, since logs have millions."""

    source: Source
    line: Line
    time: float
    """Seconds since 1970 on the master's clock: when it was written, or else when it arrived."""


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
    return f"{where}:{ranks.fold(found)}" if found else where
