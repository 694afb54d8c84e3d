"""What a check says: a finding, and how equal ones fold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip", "unknown"]

ORDER: tuple[Status, ...] = ("fail", "unknown", "warn", "skip", "pass")
"""As a person wants to read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check has to say about some nodes."""

    check: str
    status: Status
    nodes: tuple[str, ...]
    message: str
    wanted: str = ""
    found: str = ""
    remedy: str = ""
    """A command to type, or what to change; printed, never run."""


def fold_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Join findings that say the same of different nodes, worst first."""
    folded: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes = folded.setdefault(replace(finding, nodes=()), [])
        nodes.extend(node for node in finding.nodes if node not in nodes)
    joined = [replace(finding, nodes=tuple(nodes)) for finding, nodes in folded.items()]
    return tuple(sorted(joined, key=lambda finding: ORDER.index(finding.status)))
