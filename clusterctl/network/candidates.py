"""The addresses that a node could use, and why others are excluded."""

from __future__ import annotations

import fnmatch
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.values import dataclass

VIRTUAL = (
    "docker*", "br-*", "virbr*", "lxcbr*", "lxdbr*", "veth*", "vnet*", "podman*", "cni*",
    "flannel*", "cali*", "cilium*", "lxc*", "kube-*", "weave*", "nodelocaldns*", "tailscale*",
    "zt*", "wg*", "tun*", "tap*", "ppp*", "dummy*", "ifb*", "sit*", "gre*", "teql*", "nomad*",
)  # fmt: skip
"""Interface names of container engines, tunnels and overlays: not reachable from other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One address of a node."""

    interface: str
    address: str
    subnet: str
    speed_mbps: int | None
    excluded: str = ""
    """Why it is not used; empty if it is usable."""


def candidates(facts: NodeFacts, *, wanted: str | None = None) -> tuple[Candidate, ...]:
    """Return every address of the node, usable ones first, fastest first.

    `wanted` is an address or subnet of the inventory: any address in it is usable.
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
        return "loopback: only reachable on this machine"
    if address.is_link_local:
        return "link-local address: only reachable on one link"
    if any(fnmatch.fnmatchcase(interface.name, pattern) for pattern in VIRTUAL):
        return "interface of a container engine, tunnel or overlay"
    return ""
