"""The firewall of a node: what manages it, its rules, and the connections that it tracks."""

from __future__ import annotations

import re

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.values import dataclass

UFW = "/etc/ufw/ufw.conf"
FIREWALLD = "/sys/fs/cgroup/system.slice/firewalld.service/cgroup.procs"
"""The processes of the service, if systemd has started it."""
PROGRAMS = ("nft", "iptables")
CONNTRACK = "/proc/sys/net/netfilter"
_COUNT, _LIMIT = "nf_conntrack_count", "nf_conntrack_max"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallChain:
    """A chain of an nftables ruleset."""

    family: str
    """`inet`, `ip` or `ip6`."""
    table: str
    name: str
    hook: str = ""
    """`input` or `output`; empty: packets come here only from a rule that jumps."""
    policy: str = "accept"
    """What becomes of a packet that no rule decides."""
    rules: tuple[str, ...] = ()
    """As `nft list ruleset` prints them."""


@Fact("conntrack", Question(folders={CONNTRACK: (_COUNT, _LIMIT)}))
def parse_conntrack(answers: Answers) -> tuple[int, int] | None:
    """Return how many connections are tracked, and the limit; None if they are not counted."""
    count, limit = (answers.number(f"{CONNTRACK}/{name}") for name in (_COUNT, _LIMIT))
    return (count, limit) if count is not None and limit is not None and limit > 0 else None


@Fact("firewall", Question(files=(UFW, FIREWALLD), programs=PROGRAMS))
def parse_firewall(answers: Answers) -> str | None:
    """Return what manages the firewall: a service that is on, else a tool; empty for none."""
    if (answers.text(FIREWALLD) or "").strip():
        return "firewalld"
    if re.search(r"^ENABLED=[\"']?yes", answers.text(UFW) or "", re.MULTILINE):
        return "ufw"
    programs = answers.object("self").get("programs")
    if not programs or not isinstance(programs, dict):
        return None
    return next((name for name in PROGRAMS if programs.get(name)), "")
