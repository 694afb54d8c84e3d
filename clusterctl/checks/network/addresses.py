"""Whether the nodes share a network."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from clusterctl.checks.finding import Finding, fail, passed, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Candidate, Network, candidates, default_address

SUBNET = "network.subnet"
DUPLICATE = "network.duplicate-address"


@Check(
    SUBNET,
    title="all nodes share a network",
    why="Every rank connects to ranks of every other node, on an address of this network.",
    fix="Connect the nodes to one network, or name it: `network: {subnet: 10.0.0.0/24}`.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    required_facts=("interfaces",),
)
def subnet(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the nodes that have no address on the network of the others."""
    for node in facts.values():
        if node.answered and node.interfaces is not None and node.node not in network.nodes:
            yield _without(node, network, cluster)
    if network.kind == "routed":
        yield from _routed(network)


def _without(node: NodeFacts, network: Network, cluster: Cluster) -> Finding:
    own = cluster.node(node.node).address
    wanted = own or network.subnet
    asked = own or cluster.subnet  # a network that you set may be a tunnel, too
    inside = [c for c in candidates(node, wanted=asked) if wanted and _within(c, wanted)]
    remedy = "give it an address there, or set another `network: {subnet: …}`"
    if inside:
        message = f"its interface on {wanted} cannot be used: {inside[0].excluded}"
        down = _cause_of_down(node, inside[0].interface)
        if down and down != inside[0].interface:
            message += f"; it is on {down}, which is down"
        remedy = (
            f"sudo ip link set {shlex.quote(down)} up (on the node); check its cable"
            if down
            else f"to use that network, set it in the inventory: network: {{subnet: {wanted}}}"
        )
    elif own:
        message = f"it does not have the address {own}"
        remedy = "correct its `address:` in the inventory"
    elif network.subnet:
        message = f"it has no address in {network.subnet}"
    else:
        message = "it has no network in common with the other nodes"
    return fail(
        node.node,
        message,
        wanted=wanted or "a subnet in which every node has an address",
        found=_describe(candidates(node)),
        remedy=remedy,
    )


def _cause_of_down(node: NodeFacts, name: str) -> str:
    """Return the lowest interface that is down, such as the one that a VLAN is on; empty: none."""
    down: list[str] = []
    interface = node.interface(name)
    while interface is not None and interface.running is False and interface.name not in down:
        down.append(interface.name)
        interface = node.interface(interface.parent)
    return down[-1] if down else ""


def _routed(network: Network) -> Iterator[Finding]:
    """Warn of the nodes outside the subnet that most nodes use; a single address is no subnet."""
    subnets = Counter(node.subnet for node in network.nodes.values() if _has_others(node.subnet))
    usual = next((subnet for subnet, _ in subnets.most_common(1)), "")
    for name, node in network.nodes.items():
        if node.subnet != usual and _has_others(node.subnet):
            yield warn(
                name,
                f"it is outside {usual}, behind a router",
                wanted="one subnet for all nodes",
                found=f"{node.address} on {node.interface}",
                remedy="harmless if intended; else choose a common network: network: {subnet: …}",
            )


def _has_others(subnet: str) -> bool:
    """Tell whether it holds more than one address; clouds give /32 and /128, and route the rest."""
    return ip_network(subnet).num_addresses > 1


def _within(candidate: Candidate, subnet: str) -> bool:
    return ip_address(candidate.address) in ip_network(subnet, strict=False)


def _describe(found: tuple[Candidate, ...]) -> str:
    shown = [
        f"{c.address} on {c.interface}" + (f" ({c.excluded})" if c.excluded else "")
        for c in found
        if not c.excluded.startswith("loopback")
    ]
    return "; ".join(shown) or "no address"


@Check(
    DUPLICATE,
    title="no address is used twice",
    why="Packets for one node sometimes reach the other.",
    fix="Give one of the nodes another address.",
    source="https://www.rfc-editor.org/rfc/rfc5227",
    explained_by=("node.same-machine",),
    applies=lambda node, _cluster: node.interfaces is not None,
)
def duplicate(network: Network) -> Iterator[Finding]:
    """Compare the chosen addresses."""
    if network.kind == "one machine":
        return
    owners: dict[str, list[str]] = defaultdict(list)
    for name, node in network.nodes.items():
        owners[node.address].append(name)
    for address, names in owners.items():
        if len(names) > 1:
            yield fail(
                tuple(names),
                "these nodes have the same address on the data network",
                wanted="one address per node",
                found=address,
                remedy="give each node its own address, or choose another `network: {subnet: …}`",
            )


@Check(
    "network.interfaces",
    title="each node uses its interface in the common network",
    why="By default NCCL takes the first interface that it finds, even one that the other nodes"
    " cannot reach. Interface names may differ between nodes.",
    fix="Nothing needs to be done. `clusterctl check --explain-network` shows what each library"
    " uses.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    explained_by=(SUBNET,),
    blocks=False,
)
def interfaces(facts: Facts, network: Network) -> Iterator[Finding]:
    """Note the usable interfaces that the run does not use."""
    if network.kind == "one machine":
        return
    for name, node in network.nodes.items():
        other = default_address(facts[name], node)
        unused = [
            f"{c.interface} ({c.address} in {c.subnet})"
            for c in node.candidates
            if c == other
            or (not c.excluded and c.subnet != node.subnet and ip_address(c.address).version == 4)  # noqa: PLR2004  (the Internet Protocol's)
        ]
        if unused:
            own = (
                f"; programs that ask the default route for their own address get {other.address}"
                f" ({other.interface})"
                if other
                else ""
            )
            yield passed(
                name,
                f"it does not use its other interface: {', '.join(unused)}{own}",
                wanted=f"the network of all nodes, {node.subnet}",
                found=f"{node.interface} ({node.address}) is set for NCCL, Gloo"
                + (", TensorPipe, vLLM and SGLang" if other else " and TensorPipe"),
                remedy="nothing to do; to use the other network, set network: {subnet: …}",
            )
