"""The firewall of a node: what manages it, its rules, and the connections that it tracks."""

import re
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from ipaddress import ip_address, ip_network

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


_TABLE = re.compile(r"table (inet|ip6?) ([\w.-]+) \{")
_CHAIN = re.compile(r"chain ([\w.-]+) \{")
_HOOK = re.compile(r"type \w+ hook (\w+) [^;]*;(?:[^;]*policy (\w+);)?")
_QUOTED = re.compile(r'(?:log prefix|comment) "[^"]*"')
_VERDICT = re.compile(r"(?:^|\s)(?:(accept|drop|reject|return)\b|(jump|goto) (\S+))")
_NO_CONDITION = re.compile(r"counter(?: packets \d+ bytes \d+)?|log(?: (?:level|group|flags) \S+)*")
_CONDITION = re.compile(r"([a-z0-9]+(?: [a-z0-9]+)?) (!= )?(\{[^}]*\}|\S+)")
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class FirstPacket:
    """The packet that opens a TCP connection."""

    source: str
    target: str
    port: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Where the rules of a node drop a packet."""

    chain: FirewallChain
    """The chain in which the kernel begins."""
    rule: str
    """The rule that drops it, or the policy of that chain."""


def parse_ruleset(text: str) -> tuple[FirewallChain, ...]:
    """Return what the output of `nft list ruleset` says of packets that arrive and leave."""
    found: list[tuple[FirewallChain, list[str]]] = []
    table: re.Match[str] | None = None
    inside: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.endswith("{"):
            inside.append(line)
            table = _TABLE.fullmatch(line) if len(inside) == 1 else table
            chain = _CHAIN.fullmatch(line)
            if table and chain:
                found.append((FirewallChain(family=table[1], table=table[2], name=chain[1]), []))
        elif line == "}":
            del inside[-1:]
        elif table and inside and _CHAIN.fullmatch(inside[-1]):
            last, rules = found[-1]
            if begins := _HOOK.match(line):
                last = replace(last, hook=begins[1], policy=begins[2] or "accept")
                found[-1] = last, rules
            else:
                rules.append(line)
    hooks = {"", "input", "output"}
    return tuple(replace(one, rules=tuple(rules)) for one, rules in found if one.hook in hooks)


def find_drop(chains: Sequence[FirewallChain], hook: str, packet: FirstPacket) -> Drop | None:
    """Return what drops a packet at a hook; None: no rule that is understood.

    A rule counts only if each of its conditions is understood and met.
    """
    walk = _Walk(packet, {(chain.family, chain.table, chain.name): chain for chain in chains})
    for chain in chains:
        if chain.hook == hook:
            verdict, rule = walk.verdict(chain)
            if not verdict:
                verdict, rule = chain.policy, f"policy {chain.policy}"
            if verdict in {"drop", "reject"}:
                return Drop(chain, rule)
    return None


@dataclass(slots=True)
class _Walk:
    """The way of a packet through the chains."""

    packet: FirstPacket
    chains: dict[tuple[str, str, str], FirewallChain]
    decided: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)

    def verdict(self, chain: FirewallChain) -> tuple[str, str]:
        """Return what a chain decides, and by which rule; empty: nothing."""
        key = (chain.family, chain.table, chain.name)
        if key not in self.decided:
            self.decided[key] = ("", "")  # for a jump back to here, which no kernel allows
            self.decided[key] = self._decide(chain)
        return self.decided[key]

    def _decide(self, chain: FirewallChain) -> tuple[str, str]:
        for rule in chain.rules:
            words = _QUOTED.sub("", rule)
            found = _VERDICT.search(words)
            if found is None or not _is_met(words[: found.start()], self.packet):
                continue
            if found[1] == "return":
                break
            if found[1]:
                return found[1], rule
            other = self.chains.get((chain.family, chain.table, found[3]))
            decided = self.verdict(other) if other else ("", "")
            if decided[0] or found[2] == "goto":
                return decided
        return "", ""


def _is_met(conditions: str, packet: FirstPacket) -> bool:
    left = _NO_CONDITION.sub("", conditions).strip()
    while left:
        found = _CONDITION.match(left)
        if found is None:
            return False
        values = re.split(r"[,\s]+", found[3].strip("{ }").replace('"', ""))
        met = _has_one_of(values, found[1].split(), packet)
        if met is None or met is (found[2] is not None):
            return False
        left = left[found.end() :].strip()
    return True


def _has_one_of(values: Collection[str], what: Sequence[str], packet: FirstPacket) -> bool | None:
    """Tell whether a packet has one of the values; None: unknown."""
    family = "ip6" if ":" in packet.target else "ip"
    match what:
        case ["tcp" | "th", "dport"]:
            return any(_is_in_range(packet.port, value) for value in values)
        case ["meta", "l4proto"] | ["ip", "protocol"] | ["ip6", "nexthdr"]:
            return "tcp" in values
        case ["ip" | "ip6", "saddr" | "daddr"]:
            address = packet.source if what[1] == "saddr" else packet.target
            return what[0] == family and any(_is_in_network(address, value) for value in values)
        case ["ct", "state"]:
            return "new" in values
        case ["iif" | "iifname" | "oif" | "oifname"] if set(values) == {"lo"}:
            return False
    return None


def _is_in_range(port: int, value: str) -> bool:
    ends = _PORTS.fullmatch(value)
    return ends is not None and int(ends[1]) <= port <= int(ends[2] or ends[1])


def _is_in_network(address: str, value: str) -> bool:
    try:
        return ip_address(address) in ip_network(value, strict=False)
    except ValueError:
        return False
