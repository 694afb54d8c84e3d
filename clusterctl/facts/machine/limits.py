"""The resource limits of a session."""

from __future__ import annotations

import re

from clusterctl.facts.fact import Fact
from clusterctl.values import dataclass

UNLIMITED = -1
"""A resource limit that is not set."""
_SOFT = r"\s+(?:\d{1,20}|unlimited)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of the non-interactive session; UNLIMITED if not set."""

    memlock: int | None = None
    nofile: int | None = None
    nofile_hard: int | None = None
    """A run raises the soft limits on files and processes to the hard ones."""
    processes_hard: int | None = None
    stack: int | None = None


@Fact("limits", file="/proc/self/limits")
def parse_limits(text: str) -> Limits:
    """Read the limits of /proc/self/limits."""
    return Limits(
        memlock=_limit(text, "Max locked memory"),
        nofile=_limit(text, "Max open files"),
        nofile_hard=_limit(text, "Max open files" + _SOFT),
        processes_hard=_limit(text, "Max processes" + _SOFT),
        stack=_limit(text, "Max stack size"),
    )


def _limit(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}\s+(\d{{1,20}}|unlimited)\s", text, re.MULTILINE)
    if not found:
        return None
    return UNLIMITED if found[1] == "unlimited" else int(found[1])
