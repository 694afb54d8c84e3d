"""The addresses that a node could use, and why the others are not taken."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network

from clusterctl.facts.nodefacts import Interface, NodeFacts

VIRTUAL = (
    "docker*", "br-*", "virbr*", "lxcbr*", "lxdbr*", "veth*", "vnet*", "podman*", "cni*",
    "flannel*", "cali*", "cilium*", "lxc*", "kube-*", "weave*", "nodelocaldns*", "tailscale*",
    "zt*", "wg*", "tun*", "tap*", "ppp*", "dummy*", "ifb*", "sit*", "gre*", "teql*", "nomad*",
)  # fmt: skip
"""Names that container engines, tunnels and overlays give: reachable here, not from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One address of a node."""

    interface: str
    address: str
    subnet: str
    speed_mbps: int | None
    excluded: str = ""
    """Why it is not taken; empty for usable."""


def candidates(facts: NodeFacts, *, wanted: str | None = None) -> tuple[Candidate, ...]:
    """Return every address of the node, usable ones first, fastest first.

    Args:
        facts: of the node.
        wanted: an address or subnet that the person asked for; what lies in it is usable.
    """
    found = [
        Candidate(
            interface=interface.name,
            address=str(parsed.ip),
            subnet=str(parsed.network),
            speed_mbps=interface.speed_mbps,
            excluded=_excluded(interface, parsed.ip, wanted),
        )
        for interface in facts.interfaces or ()
        for parsed in map(ip_interface, interface.addresses)
    ]
    return tuple(sorted(found, key=lambda c: (bool(c.excluded), -(c.speed_mbps or 0))))


def _excluded(interface: Interface, address: IPv4Address | IPv6Address, wanted: str | None) -> str:
    if interface.running is False:
        return "it is down or has no carrier"
    if wanted is not None and address in ip_network(wanted, strict=False):
        return ""
    if interface.loopback or address.is_loopback:
        return "loopback: reaches this machine only"
    if address.is_link_local:
        return "link-local address: reaches one cable only"
    if any(fnmatch.fnmatchcase(interface.name, pattern) for pattern in VIRTUAL):
        return "made by a container engine, tunnel or overlay"
    return ""
