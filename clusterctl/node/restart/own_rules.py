"""The job's own rules of restarts, `on` and `never`: which of them apply. Pure."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.run.files.node_job import Restart


class FoundPatterns(NamedTuple):
    """Which patterns of a job are in the last lines of what failed."""

    found: Tuple[str, ...] = ()
    unreadable: Tuple[str, ...] = ()
    """Those that the node's Python cannot read, each with why."""
    late: Tuple[str, ...] = ()
    """Those whose search did not end in time: they count as not found."""


class Asked(NamedTuple):
    """What the job's own rules want."""

    again: bool
    words: str


def asked_by(
    exit_codes: Sequence[Optional[int]], limits: Restart, patterns: FoundPatterns
) -> Optional[Asked]:
    """Return what `never`, or else `on`, says of an attempt; None: neither says anything."""
    for each in patterns.unreadable:  # the controller's Python is newer
        return Asked(False, "the node's Python cannot read %s" % each)
    never = _matching(exit_codes, patterns, limits["never"])
    if never:
        return Asked(False, "%s is in job.restart.never" % never)
    on = _matching(exit_codes, patterns, limits["on"])
    return Asked(True, "%s is in job.restart.on" % on) if on else None


def _matching(
    exit_codes: Sequence[Optional[int]], patterns: FoundPatterns, rules: Mapping[str, Any]
) -> str:
    code = next((one for one in exit_codes if one in rules.get("exit_codes", ())), None)
    if code is not None:
        return "exit code %d" % code
    return next((one for one in rules.get("patterns", ()) if one in patterns.found), "")
