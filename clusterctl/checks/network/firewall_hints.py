"""The command that opens a node's firewall, for the one that it has."""

import shlex
from collections.abc import Sequence

from clusterctl.facts.network.firewall import Drop
from clusterctl.facts.nodefacts import NodeFacts


def open_to(
    node: NodeFacts | None, peers: Sequence[str], port: int | None = None, drop: Drop | None = None
) -> str:
    """Return how to let packets from these addresses or subnets in, to a port or to all.

    `drop` is what drops them today, if that is known.
    """
    firewall = node.firewall if node is not None else None
    return " && ".join(_allow(firewall, each, port, drop) for each in peers)


def open_from(node: NodeFacts | None, peers: Sequence[str], drop: Drop | None = None) -> str:
    """Return how to let packets to these addresses or subnets out."""
    firewall = node.firewall if node is not None else None
    return " && ".join(_allow_out(firewall, each, drop) for each in peers)


def _allow(firewall: str | None, peer: str, port: int | None, drop: Drop | None) -> str:
    if peer == "any" and firewall not in {None, "ufw"}:
        peer = "0.0.0.0/0"
    named = shlex.quote(peer)
    match firewall:
        case "firewalld":
            rule = f'rule source address="{peer}" accept'
            if port is not None:
                rule = f'rule source address="{peer}" port port={port} protocol=tcp accept'
            family = f'family="ipv{_version(peer)}"'
            rich = shlex.quote(rule.replace("rule ", f"rule {family} ", 1))
            return (
                f"sudo firewall-cmd --permanent --add-rich-rule={rich}; sudo firewall-cmd --reload"
            )
        case "nft":
            to = f" tcp dport {port}" if port is not None else ""
            return _nft("input", f"{_family(peer)} saddr {named}{to} accept", drop)
        case "iptables":
            to = f" -p tcp --dport {port}" if port is not None else ""
            return f"sudo {_iptables(peer)} -I INPUT -s {named}{to} -j ACCEPT"
        case "":
            return f"it has no firewall tool: open the cloud's security group to {named}"
    return f"sudo ufw allow from {named}" + (f" to any port {port} proto tcp" if port else "")


def _allow_out(firewall: str | None, peer: str, drop: Drop | None) -> str:
    named = shlex.quote(peer)
    match firewall:
        case "firewalld":
            return "sudo firewall-cmd --direct --get-all-rules"
        case "nft":
            return _nft("output", f"{_family(peer)} daddr {named} accept", drop)
        case "iptables":
            return f"sudo {_iptables(peer)} -I OUTPUT -d {named} -j ACCEPT"
        case "":
            return f"it has no firewall tool: open the cloud's security group to {named}"
    return f"sudo ufw allow out to {named}"


def _nft(chain: str, rule: str, drop: Drop | None) -> str:
    """Return a rule at the head of the chain that drops.

    Only there it helps: a packet must be accepted by all chains of a hook. `inet filter` is the
    table of most distributions.
    """
    if drop is not None:
        where = shlex.join((drop.chain.family, drop.chain.table, drop.chain.name))
        return f"sudo nft insert rule {where} {rule}"
    return (
        f"sudo nft insert rule inet filter {chain} {rule} (for inet filter {chain}, name the chain"
        " that drops: sudo nft list ruleset)"
    )


def _family(peer: str) -> str:
    return "ip6" if _version(peer) == "6" else "ip"


def _iptables(peer: str) -> str:
    return "ip6tables" if _version(peer) == "6" else "iptables"


def _version(peer: str) -> str:
    return "6" if ":" in peer else "4"
