"""Chooses the address and interface of each node by subnet and route, never by name.

The data network is the fastest subnet in which every node has an address. If there is none but the
nodes route to each other, each node uses the interface of its route to the master.
"""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Literal

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.routes import Route
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.ports import choose_port
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


AddressKind = Literal["subnet", "routed", "one machine", "none"]


INTERNET = Candidate(interface="", address="8.8.8.8", subnet="", speed_mbps=None)
"""An address that only the default route leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The address and interface that one node uses."""

    address: str
    interface: str
    subnet: str
    speed_mbps: int | None
    candidates: tuple[Candidate, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The data network of a run; nodes without a usable address are absent from `nodes`."""

    kind: AddressKind = "none"
    nodes: Mapping[str, NodeNetwork] = field(default_factory=dict)
    subnet: str = ""
    master_address: str = ""
    master_port: int = 0
    master_port_why: str = ""
    why: str = ""


def choose_network(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Network:
    """Choose for the nodes that answered; the checks judge the choice.

    The inventory's subnet, addresses and port have priority.
    """
    nodes = [
        node
        for node in cluster.nodes
        if (known := facts.get(node.name)) and known.answered and known.interfaces is not None
    ]
    found = {n.name: candidates(facts[n.name], wanted=n.address or cluster.subnet) for n in nodes}
    kind, subnet, why = _decide(cluster, nodes, facts, found)
    to_master = _toward_master(cluster, facts, found) if kind == "routed" else {}
    chosen: dict[str, NodeNetwork] = {}
    for node in nodes:
        pick, reason = _pick(node, found[node.name], kind, subnet)
        if kind == "routed" and not node.address:
            pick = to_master[node.name]
        if pick is not None:
            chosen[node.name] = NodeNetwork(
                address=pick.address,
                interface=pick.interface,
                subnet=pick.subnet,
                speed_mbps=pick.speed_mbps,
                candidates=found[node.name],
                why=reason or why,
            )
    master = chosen.get(cluster.master.name)
    port, port_why = choose_port(cluster.master_port, facts.get(cluster.master.name))
    return Network(
        kind=kind,
        nodes=chosen,
        subnet=subnet,
        master_address=master.address if master else "",
        master_port=port,
        master_port_why=port_why,
        why=why,
    )


def shared_subnets(
    nodes: list[Node], found: Mapping[str, tuple[Candidate, ...]]
) -> dict[str, int | None]:
    """Return the subnets in which every node has a usable address, with their slowest speed."""
    # Of two addresses in one subnet the first one is used, which is the faster.
    usable = [
        {c.subnet: c.speed_mbps for c in reversed(found[node.name]) if not c.excluded}
        for node in nodes
    ]
    if not usable:
        return {}
    common = set(usable[0]).intersection(*usable[1:])
    slowest: dict[str, int | None] = {}
    for subnet in common:
        speeds = [one[subnet] for one in usable]
        known = [speed for speed in speeds if speed is not None]
        slowest[subnet] = min(known) if len(known) == len(speeds) else None
    return slowest


def _decide(
    cluster: Cluster,
    nodes: list[Node],
    facts: Mapping[str, NodeFacts],
    found: Mapping[str, tuple[Candidate, ...]],
) -> tuple[AddressKind, str, str]:
    if cluster.subnet:
        return "subnet", str(ip_network(cluster.subnet, strict=False)), "set in the inventory"
    if len(nodes) > 1 and _one_machine(nodes, facts):
        return "one machine", "127.0.0.0/8", "all nodes are one machine"
    common = shared_subnets(nodes, found)
    if common:
        hosts = _host_addresses(nodes)
        best = min(
            common,
            key=lambda subnet: (_is_twice(subnet, found), *_rank(subnet, common[subnet], hosts)),
        )
        whose = _whose(len(nodes), len(cluster.nodes))
        reason = f"the only subnet that {whose}"
        if len(common) > 1:
            reason = f"the fastest of the {len(common)} subnets that {whose}"
        return "subnet", best, reason
    if nodes and len(cluster.nodes) == 1:
        return "one machine", "127.0.0.0/8", "the only node has no other address"
    if nodes and len(_toward_master(cluster, facts, found)) == len(nodes):
        return "routed", "", "no common subnet; each node's route to the master decides"
    return _of_the_most(nodes, found)


def _whose(answered: int, total: int) -> str:
    """Return whose subnet it is, and not that of nodes nothing is known of."""
    if answered == total:
        return f"all {total} nodes share" if total > 1 else "the node is in"
    if answered == 1:
        return "the one node that answered is in"
    return f"the {answered} nodes that answered share"


def _of_the_most(
    nodes: list[Node], found: Mapping[str, tuple[Candidate, ...]]
) -> tuple[AddressKind, str, str]:
    """Return the subnet that most nodes share; the checks report the others."""
    counted = Counter(
        c for name in found for c in {x.subnet for x in found[name] if not x.excluded}
    )
    most, count = counted.most_common(1)[0] if counted else ("", 0)
    if count > 1:
        return "subnet", most, f"{count} of {len(nodes)} nodes share it"
    why = "no subnet is common to all nodes" if nodes else "the addresses of all nodes are unknown"
    return "none", "", why


def _is_twice(subnet: str, found: Mapping[str, tuple[Candidate, ...]]) -> bool:
    """Tell whether two nodes have the same address there, as on a container engine's bridge."""
    own = [next((c.address for c in one if c.subnet == subnet), "") for one in found.values()]
    return len(set(own)) < len(own)


def _rank(subnet: str, speed: int | None, hosts: list[str]) -> tuple[int, int, int, str]:
    """Return a sort key: fastest first, then IPv4, then the subnet of the SSH addresses."""
    network = ip_network(subnet)
    inside = all(ip_address(host) in network for host in hosts) if hosts else False
    return (-(speed or 0), network.version, 0 if inside else 1, subnet)


def _pick(
    node: Node, found: tuple[Candidate, ...], kind: AddressKind, subnet: str
) -> tuple[Candidate | None, str]:
    """Return the node's candidate, and the reason if it differs from the other nodes'."""
    usable = [c for c in found if not c.excluded]
    if node.address:
        wanted = ip_address(node.address)
        own = next((c for c in usable if ip_address(c.address) == wanted), None)
        return own, "set in the inventory"
    if kind in {"subnet", "one machine"}:
        within = ip_network(subnet)
        # On one machine the loopback addresses are usable, too.
        eligible = found if kind == "one machine" else usable
        return next((c for c in eligible if ip_address(c.address) in within), None), ""
    return None, ""


def _toward_master(
    cluster: Cluster, facts: Mapping[str, NodeFacts], found: Mapping[str, tuple[Candidate, ...]]
) -> dict[str, Candidate]:
    """Return, for each node, the candidate that its packets to the master leave from.

    Empty if the master has no route to some node: then that node has none to the master either.
    """
    usable = {name: [c for c in one if not c.excluded] for name, one in found.items()}
    master = cluster.master.name
    own = usable.pop(master, [])
    if cluster.master.address:
        own = [c for c in own if ip_address(c.address) == ip_address(cluster.master.address)]
    if not own:
        return {}
    there = [
        next((out for c in others if (out := _leaving(own, facts[master], c))), None)
        for others in usable.values()
    ]
    chosen = there[0] if there else None
    if chosen is None or None in there:
        return {}
    leaving = {name: _leaving(others, facts[name], chosen) for name, others in usable.items()}
    return {master: chosen, **{name: one for name, one in leaving.items() if one is not None}}


def route_to(routes: Iterable[Route], address: str) -> Route | None:
    """Return the route that the kernel takes: the longest prefix, then the lowest metric."""
    target = ip_address(address)
    networks = ((ip_network(route.destination, strict=False), route) for route in routes)
    fitting = [(network.prefixlen, route) for network, route in networks if target in network]
    best = min(fitting, key=lambda one: (-one[0], one[1].metric), default=None)
    return best[1] if best else None


def default_address(facts: NodeFacts, network: NodeNetwork) -> Candidate | None:
    """Return what a program takes for its own address if it asks the default route.

    vLLM, SGLang and others connect a UDP socket to 8.8.8.8 and read its address. None: it is in
    the chosen network, or there is no default route.
    """
    if ip_address(network.address).is_loopback:
        return None
    taken = _leaving(list(network.candidates), facts, INTERNET)
    return taken if taken is not None and taken.subnet != network.subnet else None


def _leaving(own: list[Candidate], facts: NodeFacts, target: Candidate) -> Candidate | None:
    """Return the first candidate whose interface the route to the target uses."""
    route = route_to(facts.routes or (), target.address)
    version = ip_address(target.address).version
    return next(
        (
            c
            for c in own
            if route is not None
            and c.interface == route.interface
            and ip_address(c.address).version == version
        ),
        None,
    )


def _one_machine(nodes: list[Node], facts: Mapping[str, NodeFacts]) -> bool:
    """Tell whether all nodes are one machine and network namespace, as in the loopback sandbox."""
    homes = {(facts[n.name].boot_id, facts[n.name].netns) for n in nodes}
    return len(homes) == 1 and None not in next(iter(homes))


def _host_addresses(nodes: list[Node]) -> list[str]:
    """Return the inventory's hosts if all are addresses; else nothing."""
    hosts = []
    for node in nodes:
        try:
            hosts.append(str(ip_address(node.host)))
        except ValueError:
            return []
    return hosts


OWN_ADDRESS = ("VLLM_HOST_IP", "SGLANG_HOST_IP")
"""vLLM and SGLang tell other nodes this address, else that of the default route."""


@dataclass(frozen=True, slots=True)
class NetworkVariable:
    """One variable of a node's ranks, and why it has its value."""

    name: str
    value: str
    why: str


def environment(network: NodeNetwork, facts: NodeFacts) -> tuple[NetworkVariable, ...]:
    """Return the variables to set on this node; the job's own have priority."""
    interface = network.interface
    why = f"{network.address} on {network.subnet}: {network.why}"
    wanted = [
        NetworkVariable("NCCL_SOCKET_IFNAME", f"={interface}", why),
        NetworkVariable("GLOO_SOCKET_IFNAME", interface, why),
        NetworkVariable("TP_SOCKET_IFNAME", interface, why),
    ]
    devices = sorted(
        {p.device for p in facts.rdma or () if p.active and p.link_layer == "InfiniBand"}
    )
    if devices:
        why = "InfiniBand devices with an active port"
        wanted.append(NetworkVariable("NCCL_IB_HCA", "=" + ",".join(devices), why))
    if (other := default_address(facts, network)) is not None:
        why = f"the default route goes through {other.interface} ({other.address})"
        wanted += [NetworkVariable(name, network.address, why) for name in OWN_ADDRESS]
    return tuple(wanted)
