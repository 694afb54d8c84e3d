"""Parses what the kernel and the session say of firewalls, ports and proxies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from clusterctl.facts.answers import Answers
from clusterctl.facts.request import FIREWALL_PROGRAMS, FIREWALLD, PROXIES, UFW

Variables: TypeAlias = tuple[tuple[str, str], ...]
_CREDENTIALS = re.compile(r"^([a-z][a-z0-9+.-]*://|).*@", re.IGNORECASE | re.DOTALL)
"""Up to the last `@`: a password may hold any character."""
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def parse_reserved_ports(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the ranges in a list such as `29500,30000-30010`; None if it is no such list."""
    found = []
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        found.append((int(match[1]), int(match[2] or match[1])))
    return tuple(found)


def parse_conntrack(answers: Answers) -> tuple[int, int] | None:
    """Return how many connections are tracked, and the limit; None if they are not counted."""
    folder = "/proc/sys/net/netfilter/"
    count = answers.number(folder + "nf_conntrack_count")
    limit = answers.number(folder + "nf_conntrack_max")
    return (count, limit) if count is not None and limit is not None and limit > 0 else None


def parse_firewall(answers: Answers, programs: Mapping[str, Any]) -> str | None:
    """Return what manages the firewall: a service that is on, else a tool; empty for none."""
    if (answers.text(FIREWALLD) or "").strip():
        return "firewalld"
    if re.search(r"^ENABLED=[\"']?yes", answers.text(UFW) or "", re.MULTILINE):
        return "ufw"
    if not programs:
        return None
    return next((name for name in FIREWALL_PROGRAMS if programs.get(name)), "")


def hide_credentials(variables: Variables | None) -> Variables | None:
    """Return the variables without the user and password of a proxy: facts are shown and saved."""
    if variables is None:
        return None
    return tuple(
        (name, _CREDENTIALS.sub(r"\1", value) if name.lower() in PROXIES else value)
        for name, value in variables
    )
