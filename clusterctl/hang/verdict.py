"""Says why a run stands still: which rank, on which node, at which line, since when, and why."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.model.dump import NodeDump
from clusterctl.model.verdict import Verdict


def verdict(dumps: Sequence[NodeDump], missing: Sequence[str] = ()) -> Verdict:
    """Return the most certain verdict; `missing`: nodes that did not answer."""
    del dumps, missing
    return Verdict(kind="unknown", text="the dump does not tell why")
