"""The result of a check: findings, and how equal ones fold."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip", "unknown"]

ORDER: tuple[Status, ...] = ("fail", "unknown", "warn", "skip", "pass")
"""The worst first: the order in which a person wants to read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found on some nodes."""

    check: str = ""
    """The id of the check; the registry sets it."""
    status: Status
    nodes: tuple[str, ...]
    message: str
    wanted: str = ""
    """The value that a healthy node has."""
    found: str = ""
    remedy: str = ""
    """A command to type, or what to change; printed, never run."""


def finding(
    status: Status,
    nodes: str | tuple[str, ...],
    message: str,
    *,
    wanted: str = "",
    found: str = "",
    remedy: str = "",
) -> Finding:
    """Return a finding of this status on one node, or on all that share it."""
    return Finding(
        status=status,
        nodes=(nodes,) if isinstance(nodes, str) else nodes,
        message=message,
        wanted=wanted,
        found=found,
        remedy=remedy,
    )


fail = functools.partial(finding, "fail")
warn = functools.partial(finding, "warn")
unknown = functools.partial(finding, "unknown")
skip = functools.partial(finding, "skip")
passed = functools.partial(finding, "pass")


def fold_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Fold findings that differ only in their nodes; the worst come first."""
    folded: dict[Finding, list[str]] = {}
    for each in findings:
        nodes = folded.setdefault(replace(each, nodes=()), [])
        nodes.extend(node for node in each.nodes if node not in nodes)
    joined = [replace(each, nodes=tuple(nodes)) for each, nodes in folded.items()]
    return tuple(sorted(joined, key=lambda each: ORDER.index(each.status)))
