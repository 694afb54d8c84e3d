"""Whether the links of the data network are up, fast and free of errors."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping

from clusterctl.checks.finding import Finding, skip, warn
from clusterctl.checks.network.addresses import SUBNET
from clusterctl.checks.others import highest_of_most_frequent, medians_of_others
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.network.interfaces import BondPort, Interface
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.choice import Network

LEAST_FLAPS = 20
"""A link changes a few times while a node boots or a driver is loaded."""
FLAPS_RATIO = 5
DROPS = {"rx_dropped", "tx_dropped", "rx_missed_errors"}
LEAST_DROPS = 100
"""A node drops some packets that are not for it, such as those that switches send."""


def chosen_links(node: NodeFacts, network: Network) -> tuple[Interface, ...]:
    """Return the node's chosen interface and what it is on, such as a VLAN and then its bond."""
    place = network.nodes.get(node.node)
    found: list[Interface] = []
    interface = node.interface(place.interface) if place else None
    while interface is not None and interface not in found:
        found.append(interface)
        interface = node.interface(interface.parent)
    return tuple(found)


@Check(
    "network.link",
    title="the links of the data network have one speed and MTU, and are full duplex",
    why="The slowest link limits all nodes, and a link drops frames that are larger than its MTU.",
    fix="Check cable, switch port and auto-negotiation of the slow link, and set one MTU on"
    " nodes and switches.",
    source="https://docs.kernel.org/networking/ethtool-netlink.html",
    explained_by=(SUBNET,),
    blocks=False,
)
def link(facts: Facts, network: Network) -> Iterator[Finding]:
    """Compare speed and MTU of the chosen interfaces with what most nodes have."""
    speeds: dict[str, int | None] = {n: c.speed_mbps for n, c in network.nodes.items()}
    mtus: dict[str, int | None] = {}
    for name, chosen in network.nodes.items():
        interface = facts[name].interface(chosen.interface)
        mtus[name] = interface.mtu if interface else None
    for what, unit, values in (("speed", " Mb/s", speeds), ("MTU", "", mtus)):
        known = {name: value for name, value in values.items() if value is not None}
        usual = highest_of_most_frequent(known.values())
        for name, value in known.items():
            if value < usual or (what == "MTU" and value != usual):
                device = network.nodes[name].interface
                named = shlex.quote(device)
                yield warn(
                    name,
                    f"its data link has another {what} than the other nodes",
                    wanted=f"{usual}{unit}",
                    found=f"{value}{unit} on {device}",
                    remedy=f"sudo ip link set {named} mtu {usual} (on the node)"
                    if what == "MTU"
                    else f"ethtool {named} (on the node); check cable and switch",
                )
    for node in facts.values():
        for interface in chosen_links(node, network):
            if interface.duplex == "half":
                yield warn(
                    node.node,
                    "its data link is half duplex: it cannot send and receive at the same time",
                    wanted="full duplex",
                    found=f"half duplex on {interface.name}",
                    remedy=f"sudo ethtool -s {shlex.quote(interface.name)} autoneg on (on the node)"
                    "; the switch port must negotiate, too",
                )


def _ports(node: NodeFacts, network: Network) -> tuple[BondPort, ...]:
    links = {interface.name for interface in chosen_links(node, network)}
    return tuple(port for port in node.bond_ports if port.bond in links)


@Check(
    "network.bond",
    title="all ports of a bond are up",
    why="A bond with a port down still works, with a part of its speed and without a spare.",
    fix="Check cable and switch of the port that is down; /proc/net/bonding names it.",
    source="https://docs.kernel.org/networking/bonding.html",
    explained_by=(SUBNET,),
    blocks=False,
    applies=lambda node, _cluster: bool(node.bond_ports),
)
def bond(node: NodeFacts, network: Network) -> Iterator[Finding]:
    """Judge the bonds that the chosen interfaces are, or are on."""
    ports = _ports(node, network)
    down = [port.interface for port in ports if not port.up]
    if down:
        yield warn(
            node.node,
            f"{counted(len(down), 'port')} of its bond {ports[0].bond} "
            + ("is down" if len(down) == 1 else "are down"),
            wanted=f"all of {', '.join(port.interface for port in ports)} up",
            found=f"{', '.join(down)} down",
            remedy=f"ethtool {shlex.quote(down[0])} (on the node); check cable and switch",
        )


@Check(
    "network.flaps",
    title="no link goes down more often than those of other nodes",
    why="A link that goes down for a moment stalls or ends a run: NCCL waits, then gives up.",
    fix="Replace the cable or the optics, and look at the log of the switch.",
    source="https://docs.kernel.org/networking/operstates.html",
    explained_by=(SUBNET,),
    blocks=False,
    applies=lambda node, _cluster: (
        any(each.carrier_changes is not None for each in node.interfaces or ())
        or any("/" in each.device for each in node.counters)
    ),
)
def flaps(facts: Facts, network: Network) -> Iterator[Finding]:
    """Compare how often each link has changed since boot with the other nodes."""
    counts: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)
    for node in facts.values():
        for link in chosen_links(node, network)[-1:]:
            if link.carrier_changes is not None:
                counts["data link"][node.node] = (link.name, link.carrier_changes)
        for counters in node.counters:
            downs = dict(counters.values).get("link_downed")
            if downs is not None:
                counts[f"RDMA port {counters.device}"][node.node] = (counters.device, downs)
    for name in network.nodes:
        if not any(name in known for known in counts.values()):
            yield skip(name, "the kernel does not count the changes of its link")
    for what, known in counts.items():
        for name, usual in unusual({node: count for node, (_, count) in known.items()}).items():
            device, count = known[name]
            words = shlex.quote(device) if what == "data link" else "'link down'"
            yield warn(
                name,
                f"its {what} went down more often than those of the other nodes",
                wanted=f"about {usual} changes since boot",
                found=f"{count} changes on {device}",
                remedy=f"sudo dmesg | grep -i {words} (on the node)"
                " shows when; check cable, optics and switch port",
            )


def unusual(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes whose count is far above the others', with the median of the others."""
    return {
        name: int(usual)
        for name, usual in medians_of_others(counts).items()
        if counts[name] >= max(LEAST_FLAPS, FLAPS_RATIO * int(usual))
    }


@Check(
    "network.errors",
    title="the error counters of the data network's links do not grow",
    why="Errors on an idle link come from a cable, optics or a port; under load they cost speed.",
    fix="Replace the cable or the optics; if drops grow, look for overload or small ring buffers.",
    source="https://docs.kernel.org/networking/statistics.html",
    pairwise=True,
    explained_by=(SUBNET,),
    blocks=False,
    applies=lambda node, _cluster: bool(node.counters and node.met.counters),
)
def errors(node: NodeFacts) -> Iterator[Finding]:
    """Compare the counters from before and after the connections between nodes."""
    before = {counters.device: dict(counters.values) for counters in node.counters}
    for counters in node.met.counters:
        start = before.get(counters.device, {})
        grown = {
            name: value - start[name]
            for name, value in counters.values
            if name in start and value - start[name] >= (LEAST_DROPS if name in DROPS else 1)
        }
        if grown:
            device = shlex.quote(counters.device)
            tool = "rdma statistic show link" if "/" in device else "ethtool -S"
            yield warn(
                node.node,
                f"{counters.device} counts errors during this check",
                wanted="no new errors",
                found=", ".join(f"{name} +{more}" for name, more in sorted(grown.items())),
                remedy=f"{tool} {device} (on the node); check cable, optics and switch",
            )
