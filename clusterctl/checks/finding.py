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
    gpus: tuple[int, ...] = ()
    """The GPUs of each node that it is about, as the vendor's tool numbers them.

    `{gpus}` in the other texts stands for their list, such as `0,1,2`.
    """


def finding(
    status: Status,
    nodes: str | tuple[str, ...],
    message: str,
    *,
    wanted: str = "",
    found: str = "",
    remedy: str = "",
    gpus: tuple[int, ...] = (),
) -> Finding:
    """Return a finding of this status on one node, or on all that share it."""
    return Finding(
        status=status,
        nodes=(nodes,) if isinstance(nodes, str) else nodes,
        message=message,
        wanted=wanted,
        found=found,
        remedy=remedy,
        gpus=gpus,
    )


fail = functools.partial(finding, "fail")
warn = functools.partial(finding, "warn")
unknown = functools.partial(finding, "unknown")
skip = functools.partial(finding, "skip")
passed = functools.partial(finding, "pass")


def fold_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Fold findings that differ only in their GPUs, then in their nodes; the worst come first."""
    gpus: dict[Finding, set[int]] = {}
    for each in findings:
        gpus.setdefault(replace(each, gpus=()), set()).update(each.gpus)
    nodes: dict[Finding, list[str]] = {}
    for each, numbers in gpus.items():
        named = nodes.setdefault(replace(each, gpus=tuple(sorted(numbers)), nodes=()), [])
        named.extend(node for node in each.nodes if node not in named)
    joined = [_with_gpus(replace(each, nodes=tuple(named))) for each, named in nodes.items()]
    return tuple(sorted(joined, key=lambda each: ORDER.index(each.status)))


def _with_gpus(each: Finding) -> Finding:
    """Put the list of its GPUs into the texts."""
    if not each.gpus:
        return each
    listed = ",".join(map(str, each.gpus))
    texts = {name: getattr(each, name) for name in ("message", "wanted", "found", "remedy")}
    return replace(each, **{name: text.replace("{gpus}", listed) for name, text in texts.items()})
