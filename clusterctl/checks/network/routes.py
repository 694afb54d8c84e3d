"""Whether packets between nodes leave through the chosen interfaces."""

import shlex
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from clusterctl.checks.finding import Finding, Status, finding
from clusterctl.checks.network.addresses import DUPLICATE, SUBNET
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.network.pairwise import ConnectResult
from clusterctl.facts.network.routes import Route
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Candidate, Network, NodeNetwork, route_to
from clusterctl.values import dataclass

ROUTE = "network.route"
STRICT = 1
"""A value of rp_filter: packets that do not come the way that answers take are dropped."""
DOCKER = "/etc/docker/daemon.json"


@Check(
    ROUTE,
    title="each node sends its packets through the chosen interface",
    why="Outgoing connections are not bound to an interface: the routing table decides.",
    fix="Remove the other route, or give it a higher metric.",
    source="https://man7.org/linux/man-pages/man8/ip-route.8.html",
    explained_by=(SUBNET, DUPLICATE, "node.same-machine"),
    applies=lambda node, _cluster: (
        node.routes is not None or any(c.interface for c in _pairs(node))
    ),
)
def route(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge by the routing table, and by the source addresses of the test connections."""
    if network.kind == "one machine":
        return
    for name, node in network.nodes.items():
        peer = next((p.address for other, p in network.nodes.items() if other != name), "")
        if name != cluster.master.name and network.master_address:
            peer = network.master_address
        if peer:
            yield from _route(facts[name], network, node, peer, cluster.node(name).host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How packets to a peer leave a node."""

    peer: str
    interface: str
    astray: bool
    """They do not leave through the chosen interface."""
    route: Route | None
    """The main table's route that applies; None: policy rules say otherwise."""


def strays(node: NodeFacts, network: Network) -> tuple[ConnectResult, ...]:
    """Return the connections that the kernel sends through another interface than the chosen."""
    chosen = network.nodes.get(node.node)
    if chosen is None:
        return ()
    return tuple(c for c in _pairs(node) if c.interface and c.interface != chosen.interface)


def _pairs(node: NodeFacts) -> tuple[ConnectResult, ...]:
    return tuple(c for c in node.met.connected if c.key == "pair")


def _way(facts: NodeFacts, network: Network, chosen: NodeNetwork, peer: str) -> _Way:
    """Return what the kernel did with the test connections; without them, what its table says."""
    made = _pairs(facts)
    routes = facts.routes or ()
    if any(c.interface for c in made):
        wrong = strays(facts, network)
        peer = wrong[0].address if wrong else peer
        by = wrong[0].interface if wrong else chosen.interface
        taken = route_to(routes, peer)
        told = taken if taken is not None and taken.interface == by else None
        return _Way(peer=peer, interface=by, astray=bool(wrong), route=told)
    taken = route_to(routes, peer)
    # Policy routes are in other tables: connections from the right address outweigh this one.
    proven = {c.source for c in made} - {""} == {chosen.address}
    astray = taken is not None and taken.interface != chosen.interface and not proven
    by = taken.interface if taken is not None else ""
    return _Way(peer=peer, interface=by, astray=astray, route=taken)


def _route(
    facts: NodeFacts, network: Network, chosen: NodeNetwork, peer: str, host: str
) -> Iterator[Finding]:
    way = _way(facts, network, chosen, peer)
    sources = {made.source for made in _pairs(facts)}
    sources -= {"", *(c.address for c in chosen.candidates if c.interface == chosen.interface)}
    second = _second(facts, chosen, way)
    if not way.astray and not sources and second is None:
        return
    status: Status = "fail" if way.astray or sources else "warn"
    wanted = f"packets leave through {chosen.interface}, from {chosen.address}"
    found = f"{way.route.destination} through {way.route.interface}" if way.route else "no route"
    if way.astray and way.route is None:
        found = f"a policy rule sends them through {way.interface}"
    if second is not None:
        message = f"two interfaces are in {chosen.subnet}: {chosen.interface}, {second.interface}"
        stays, goes = (chosen.interface, chosen.address), (second.interface, second.address)
        if host == second.address:
            # Deleting the address that SSH uses would cut off the node.
            stays, goes = goes, stays
        wanted = f"only {stays[0]} ({stays[1]}) in {chosen.subnet}"
        address = f"{goes[1]}/{second.subnet.split('/')[1]}"
        if _filters(facts, chosen, second):
            found += "; rp_filter drops packets that arrive at the other one"
        remedy = shlex.join(["sudo", "ip", "addr", "del", address, "dev", goes[0]])
    elif way.astray:
        message = f"packets to {way.peer} leave through {way.interface}"
        remedy = _correct(chosen, way)
        if any(_is_overlap(c, way) for c in chosen.candidates):
            message += ", whose own subnet has that address, too"
    else:
        message = f"connections to the other nodes come from {', '.join(sorted(sources))}"
        remedy = "ip rule (on the node) shows policy routes"
    yield finding(status, facts.node, message, wanted=wanted, found=found, remedy=remedy)


def _second(facts: NodeFacts, chosen: NodeNetwork, way: _Way) -> Candidate | None:
    """Return another address in the chosen subnet, unless the kernel keeps the two apart."""
    for each in chosen.candidates:
        if each.subnet != chosen.subnet or each.interface == chosen.interface or each.excluded:
            continue
        settings = [facts.interface(name) for name in (each.interface, chosen.interface)]
        apart = all(i is not None and i.arp_ignore and i.rp_filter != STRICT for i in settings)
        if way.interface == each.interface if way.astray else not apart:
            return each
    return None


def _filters(facts: NodeFacts, chosen: NodeNetwork, second: Candidate) -> bool:
    both = (facts.interface(name) for name in (chosen.interface, second.interface))
    return any(i is not None and i.rp_filter == STRICT for i in both)


def _is_overlap(candidate: Candidate, way: _Way) -> bool:
    """Tell whether the peer's address is in the subnet of a bridge or tunnel of this node."""
    return (
        bool(candidate.excluded)
        and candidate.interface == way.interface
        and ip_address(way.peer) in ip_network(candidate.subnet)
    )


def _correct(chosen: NodeNetwork, way: _Way) -> str:
    """Return what to type so that packets take the chosen interface."""
    by, route = shlex.quote(way.interface), way.route
    if route is None:
        peer, own = shlex.quote(way.peer), shlex.quote(chosen.address)
        return f"ip rule; ip route get {peer} from {own} (on the node)"
    if any(_is_overlap(c, way) for c in chosen.candidates):
        if way.interface.startswith(("docker", "br-")):
            return f"give {by} another subnet: bip and default-address-pools in {DOCKER}"
        return f"give {by} another subnet"
    if ip_network(route.destination).prefixlen:
        return shlex.join(["sudo", "ip", "route", "del", route.destination, "dev", route.interface])
    # Without its default route no one could reach the node, clusterctl included.
    return (
        f"add a route through {shlex.quote(chosen.interface)}, or correct `address:` or `network:`"
    )
