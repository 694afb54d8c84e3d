"""The result of a check: findings, and how equal ones fold."""

import functools
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from clusterctl.values import dataclass

Status = Literal["pass", "warn", "fail", "skip", "unknown"]

ORDER: tuple[Status, ...] = ("fail", "unknown", "warn", "skip", "pass")
"""The worst first: the order in which a user wants to read them."""


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
    """Fold findings that differ only in their GPUs, then in their nodes; the worst come first.

    A remedy that names the node itself differs only in its node too.
    """
    gpus: dict[Finding, set[int]] = {}
    for each in findings:
        gpus.setdefault(replace(each, gpus=()), set()).update(each.gpus)
    alike: dict[Finding, dict[str, str]] = {}
    for each, numbers in gpus.items():
        remedy = without_name(each.remedy, *each.nodes[:1])
        key = replace(each, gpus=tuple(sorted(numbers)), nodes=(), remedy=remedy)
        remedies = alike.setdefault(key, {})
        for node in each.nodes:
            remedies.setdefault(node, each.remedy)
    joined = [
        _with_gpus(replace(each, nodes=tuple(remedies), remedy=likewise(remedies.values())))
        for each, remedies in alike.items()
    ]
    return tuple(sorted(joined, key=lambda each: ORDER.index(each.status)))


def without_name(text: str, *names: str) -> str:
    """Return a text with HOST for each of a node's names."""
    for name in names:
        if name not in text:
            continue  # to compile the pattern of each name takes long
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", "HOST", text)
    return text


def likewise(remedies: Iterable[str]) -> str:
    """Return one remedy for all: the first node's, which can be typed."""
    first, *others = dict.fromkeys(remedies)
    return f"{first}; likewise for the other nodes" if others else first


def _with_gpus(each: Finding) -> Finding:
    """Put the list of its GPUs into the texts."""
    if not each.gpus:
        return each
    listed = ",".join(map(str, each.gpus))
    texts = {name: getattr(each, name) for name in ("message", "wanted", "found", "remedy")}
    return replace(each, **{name: text.replace("{gpus}", listed) for name, text in texts.items()})
