"""Whether the nodes can connect to each other, judged by real connections."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping

from clusterctl.checks.finding import Finding, fail, unknown
from clusterctl.checks.network.addresses import DUPLICATE, SUBNET
from clusterctl.checks.network.firewall_hints import open_from, open_to
from clusterctl.checks.network.routes import ROUTE, strays
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.network.firewall import Drop, FirstPacket, find_drop
from clusterctl.facts.network.pairwise import LARGEST_PROBE, ConnectResult, ListenResult
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network
from clusterctl.network.ports import choose_port

PAIRS = "network.pairs"
PORT = "network.master-port"
REACH = "network.master-reach"

_CAUSE = {
    "timeout": "packets are dropped: a firewall, or a wrong route",
    "refused": "refused although a listener is there: a firewall rejects it",
    "unreachable": "no route, or a firewall rejects it",
    "foreign": "another program answers at that address and port",
}
USUAL_MTU = 1500
LOWER_MTU = 1400
"""Room for the headers of a tunnel."""
_SRC_WEIGHT = 0.9
"""Most firewalls block incoming connections: in doubt the finding names the target."""


def _not_probed(node: NodeFacts) -> Iterator[Finding]:
    if node.met.problem:
        yield unknown(
            node.node,
            "its connections could not be tested",
            wanted="connections to and from every node",
            found=node.met.problem,
            remedy="clusterctl check",
        )


def _failures(facts: Facts, key: str) -> dict[tuple[str, str], ConnectResult]:
    """Return the connections that failed, by (from, to)."""
    return {
        (node.node, made.target): made
        for node in facts.values()
        for made in node.met.connected
        # Saved facts may have more nodes than this check judges.
        if made.key == key and made.state != "ok" and made.target in facts
    }


@Check(
    PAIRS,
    title="every node can connect to every other on ephemeral ports",
    why="NCCL and Gloo listen on ports that the kernel chooses; an open master port is not enough.",
    fix="Allow all TCP ports between the nodes in every firewall, host and cloud.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    pairwise=True,
    explained_by=(SUBNET, DUPLICATE),
)
def pairs(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the fewest nodes that explain the failed connections."""
    for node in facts.values():
        yield from _not_probed(node)
        bound = _bound(node, "pair")
        if bound is not None and bound.port is None:
            yield fail(
                node.node,
                "it cannot listen on its own address",
                wanted=f"a listener on {bound.address}",
                found=bound.error,
                remedy=f"ip addr show to {shlex.quote(bound.address)} (on {node.node})",
            )
    # Packets that take the wrong interface are a matter of `network.route`.
    astray = {
        frozenset((node.node, made.target))
        for node in facts.values()
        for made in strays(node, network)
    }
    left = {p: made for p, made in _failures(facts, "pair").items() if frozenset(p) not in astray}
    drops: dict[str, dict[tuple[str, str], Drop]] = defaultdict(dict)
    for pair, made in left.items():
        if found := _drop(facts, pair, made):
            drops[found[0]][pair] = found[1]
    for name, rules in drops.items():
        mine = {pair: left.pop(pair) for pair in rules}
        yield _blame(facts[name], mine, network, {r.chain.hook: r for r in rules.values()})
    while left:
        name = _most_involved(left, cluster)
        mine = {pair: made for pair, made in left.items() if name in pair}
        left = {pair: made for pair, made in left.items() if name not in pair}
        yield _blame(facts[name], mine, network, {})


def _drop(facts: Facts, pair: tuple[str, str], made: ConnectResult) -> tuple[str, Drop] | None:
    """Return the node whose rules drop a connection, and the rule; None: unknown."""
    source, target = pair
    packet = FirstPacket(made.source, made.address, made.port)
    for name, hook in ((source, "output"), (target, "input")):
        drop = find_drop(facts[name].firewall_chains or (), hook, packet)
        if drop is not None:
            return name, drop
    return None


def _dropped(drop: Drop) -> str:
    return f"`{drop.rule}` in its chain {drop.chain.family} {drop.chain.table} {drop.chain.name}"


def _most_involved(left: dict[tuple[str, str], ConnectResult], cluster: Cluster) -> str:
    weight: dict[str, float] = defaultdict(float)
    for source, target in left:
        weight[target] += 1.0
        weight[source] += _SRC_WEIGHT
    # Of two equally likely nodes, blame the worker: a faulty master fails with every worker.
    order = {node.name: index for index, node in enumerate(cluster.nodes)}
    return max(weight, key=lambda name: (weight[name], order.get(name, 0)))


def _blame(
    node: NodeFacts,
    mine: dict[tuple[str, str], ConnectResult],
    network: Network,
    drops: Mapping[str, Drop],
) -> Finding:
    """Name a node for its failed connections; `drops` are its rules that explain them, by hook."""
    name = node.node
    into = sorted(source for source, target in mine if target == name)
    out = sorted(target for source, target in mine if source == name)
    (source, target), made = next(iter(mine.items()))
    others = [network.nodes[other].address for other in into or out if other in network.nodes]
    others = [network.subnet] if network.subnet else others
    address = shlex.quote(made.address)
    if into and out:
        message = "TCP fails in both directions between it and " + _names(into, out)
    elif into:
        message = "TCP to it fails from " + _names(into)
    else:
        message = "TCP from it fails to " + _names(out)
    if made.state == "foreign":
        remedy = f"ip neigh show {address} (on {source}) should show {target}"
    else:
        openings = {
            "input": open_to(node, others, drop=drops.get("input")),
            "output": open_from(node, others, drops.get("output")),
        }
        hooks = sorted(drops) or ["input" if into else "output"]
        remedy = " && ".join(openings[hook] for hook in hooks) + f" (on {name})"
    if made.state == "unreachable" and not drops:
        remedy = f"ip route get {address} (on {source}); if it shows a route: {remedy}"
    return fail(
        name,
        message,
        wanted="connections on any port of the data network",
        found=(", ".join(map(_dropped, drops.values())) or _CAUSE.get(made.state, made.words))
        + f" ({made.address} port {made.port})",
        remedy=remedy,
    )


def _names(*lists: list[str]) -> str:
    return ", ".join(sorted({name for names in lists for name in names}))


@Check(
    PORT,
    title="the master port is free",
    why="If another program holds the port, the rendezvous fails with EADDRINUSE or hangs.",
    fix="End the program that holds the port, or choose another: `network: {master_port: N}`.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    pairwise=True,
    explained_by=(SUBNET, "node.busy"),  # the run that is there has it
)
def master_port(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge by binding it as PyTorch does; name the process that holds it."""
    master = facts.get(cluster.master.name)
    if master is None:
        return
    yield from _not_probed(master)
    bound = _bound(master, "master")
    if bound is None or bound.port is not None:
        return
    free, _ = choose_port(None, master, but=network.master_port)
    yield fail(
        cluster.master.name,
        f"cannot use the master port {network.master_port}",
        wanted=f"port {network.master_port} free ({network.master_port_why})",
        found=f"{bound.error}: held by {bound.holder}" if bound.holder else bound.error,
        remedy=f"end that program, or choose another port: network: {{master_port: {free}}}",
    )


def _bound(node: NodeFacts, key: str) -> ListenResult | None:
    return next((b for b in node.met.bound if b.key == key), None)


def _has_tried(node: NodeFacts, cluster: Cluster) -> bool:
    """Tell whether a node tried the master port; not all try, and none if the port is in use."""
    return node.node == cluster.master.name or any(c.key == "master" for c in node.met.connected)


@Check(
    REACH,
    title="every node can connect to the master port",
    why="A rank that cannot reach the rendezvous waits until it times out.",
    fix="Allow the master port from all nodes, in every firewall.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    pairwise=True,
    explained_by=(SUBNET, DUPLICATE, PORT),
    applies=_has_tried,
)
def master_reach(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Blame the master if all workers fail; skip pairs that fail on every port.

    If one of several fails, its own firewall is the first to look at.
    """
    blocked = _failures(facts, "pair")
    failed = {p: made for p, made in _failures(facts, "master").items() if p not in blocked}
    tried = [
        node.node
        for node in facts.values()
        if any(made.key == "master" for made in node.met.connected)
    ]
    workers = sorted(source for source, _ in failed)
    master, port = cluster.master.name, network.master_port
    peers = network.subnet or "any"
    at_master = len(workers) > 1 and len(workers) == len(tried)
    for (source, target), made in failed.items():
        if drop := _drop(facts, (source, target), made):
            yield _drop_of_port(facts[drop[0]], source, drop[1], network)
            continue
        opening = [f"{open_to(facts.get(master), [peers], port)} (on {master})"]
        if not at_master:
            outgoing = open_from(facts.get(source), [network.master_address])
            opening.append(f"{outgoing} (on {source})")
        yield fail(
            (master,) if at_master else (source,),
            f"no node can connect to its port {port}"
            if at_master
            else f"it cannot connect to the master port {port} of {master}",
            wanted=f"a connection to {network.master_address} port {port}",
            found=_port_cause(made),
            remedy=f"ss -ltnp 'sport = :{port}' (on {master}) shows the listening process"
            if made.state == "foreign"
            else "; if that does not help: ".join(
                opening if at_master or len(tried) == 1 else reversed(opening)
            ),
        )
    yield from _translated(facts, network)


def _drop_of_port(node: NodeFacts, worker: str, drop: Drop, network: Network) -> Finding:
    """Name the rule of a node that drops the master port."""
    port = network.master_port
    is_worker = node.node == worker
    which = "the master port" if is_worker else "its port"
    opening = (
        open_from(node, [network.master_address], drop)
        if is_worker
        else open_to(node, [network.subnet or "any"], port, drop)
    )
    return fail(
        node.node,
        f"its firewall blocks connections to {which} {port}",
        wanted=f"connections to {network.master_address} port {port}",
        found=_dropped(drop),
        remedy=f"{opening} (on {node.node})",
    )


def _port_cause(made: ConnectResult) -> str:
    """Return why this port fails although other ports of the node answer."""
    if made.state in {"unreachable", "refused"}:
        return f"a firewall rejects it ({made.words}); other ports answer"
    if made.state == "timeout":
        return "a firewall drops it silently; other ports answer"
    return _CAUSE.get(made.state, made.words)


def _translated(facts: Facts, network: Network) -> Iterator[Finding]:
    """Find the nodes whose address changes on the way to another node."""
    for node in facts.values():
        chosen = network.nodes.get(node.node)
        for made in node.met.connected if chosen else ():
            own = chosen.address if chosen and made.key == "master" else made.source
            if made.seen_as and own and made.seen_as != own:
                seer = "the master" if made.key == "master" else made.target
                yield fail(
                    node.node,
                    "NAT translates its address: other nodes cannot connect back to it",
                    wanted=f"{seer} sees {own}",
                    found=f"it sees {made.seen_as}",
                    remedy="choose a network without NAT: set network: {subnet: …}",
                )
                break


@Check(
    "network.full-size",
    title="packets of full size arrive",
    why="Small packets pass a switch or tunnel that drops large ones: all connections are made, and"
    " the first collective hangs.",
    fix="Set the MTU of all nodes to what every switch and tunnel between them carries.",
    source="https://www.rfc-editor.org/rfc/rfc2923",
    pairwise=True,
    explained_by=(SUBNET, DUPLICATE, ROUTE, PAIRS),
    applies=lambda node, _cluster: any(made.full_size is not None for made in node.met.connected),
)
def full_size(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the fewest nodes that explain the lost packets; all of them if none arrived."""
    tried = {
        (node.node, made.target): made
        for node in facts.values()
        for made in node.met.connected
        if made.key == "pair" and made.full_size is not None and made.target in facts
    }
    left = {pair: made for pair, made in tried.items() if not made.full_size}
    if left and len(left) == len(tried):
        names = tuple(sorted({name for pair in left for name in pair}))
        yield _too_large(facts, network, names, next(iter(left)), "between the nodes")
        return
    while left:
        name = _most_involved(left, cluster)
        mine = [pair for pair in left if name in pair]
        left = {pair: made for pair, made in left.items() if name not in pair}
        others = sorted({other for pair in mine for other in pair} - {name})
        where = f"between it and {', '.join(others)}"
        yield _too_large(facts, network, (name,), mine[0], where)


def _too_large(
    facts: Facts, network: Network, names: tuple[str, ...], pair: tuple[str, str], where: str
) -> Finding:
    receiver, sender = pair
    chosen = network.nodes.get(sender)
    interface = facts[sender].interface(chosen.interface) if chosen else None
    size = min((interface.mtu if interface else None) or LARGEST_PROBE, LARGEST_PROBE)
    lower = USUAL_MTU if size > USUAL_MTU else LOWER_MTU
    named = shlex.quote(interface.name if interface else "INTERFACE")
    return fail(
        names,
        f"packets of {size} bytes {where} are lost; small ones arrive",
        wanted=f"the whole path carries the MTU of the interfaces, {size}",
        found=f"of {size} bytes from {sender}, nothing arrived at {receiver}",
        remedy=f"sudo ip link set {named} mtu {lower} (on {sender}, and likewise on every node),"
        f" or let the switches and tunnels pass {size} bytes",
    )
