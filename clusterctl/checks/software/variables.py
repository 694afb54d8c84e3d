"""Whether the variables of NCCL, Gloo and TensorPipe are right on every node, and equal."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network

from clusterctl.checks.finding import Finding, Status, finding, passed, warn
from clusterctl.checks.network.addresses import SUBNET
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.settings import remove_from, settings_of
from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import PROXIES, Setting
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network, NodeNetwork
from clusterctl.network.simulate import Pick, gloo_picks, nccl_picks, surprises, tensorpipe_picks

IFNAME = "network.ifname"
NO_PROXY = "no_proxy"

_LIBRARIES: dict[str, Callable[[str, Iterable[Interface]], Pick]] = {
    "NCCL_SOCKET_IFNAME": nccl_picks,
    "GLOO_SOCKET_IFNAME": gloo_picks,
    "TP_SOCKET_IFNAME": tensorpipe_picks,
}


_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TP_")


@Check(
    IFNAME,
    title="interface names in job.env and env_init are right on every node",
    why="Interface names may differ between nodes, and each library reads the value differently."
    " If you set none, clusterctl sets each node's own.",
    fix="Remove the variable: clusterctl sets each node's own interface, in the syntax of each"
    " library.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    explained_by=(SUBNET,),
)
def ifname(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Simulate which interface each library would pick."""
    alone = len(network.nodes) < 2 or network.kind == "one machine"  # noqa: PLR2004  (a pair)
    counted = Counter(
        address
        for each in network.nodes.values()
        for address in {candidate.address for candidate in each.candidates}
    )
    repeated = {address for address, count in counted.items() if count > 1}
    for node in facts.values():
        chosen = network.nodes.get(node.node)
        if node.interfaces is None or chosen is None:
            continue
        for setting in settings_of(node, network, cluster):
            picks = _LIBRARIES.get(setting.name)
            if picks is not None and setting.value:
                pick = picks(setting.value, node.interfaces)
                unreachable = "" if alone else _unreachable(setting.name, pick, chosen, repeated)
                yield from _judge(node, chosen, setting, pick, unreachable)


def _unreachable(name: str, pick: Pick, chosen: NodeNetwork, repeated: set[str]) -> str:
    """Return the interface that leads to no other node, with its address; empty if none is known.

    Of NCCL's interfaces only the first counts: its address is what the other ranks connect to.
    `^docker0` makes that the loopback, which NCCL excludes only where nothing is set.
    """
    for interface in pick.interfaces[:1] if name.startswith("NCCL") else pick.interfaces:
        addresses = [
            parsed
            for each in chosen.candidates
            if each.interface == interface != chosen.interface
            and not (parsed := ip_address(each.address)).is_link_local
        ]
        # A bridge of containers has the same address on every node.
        if addresses and all(one.is_loopback or str(one) in repeated for one in addresses):
            also = "" if addresses[0].is_loopback else ", as other nodes have it"
            return f"{interface} ({addresses[0]}{also})"
    return ""


def _judge(
    node: NodeFacts, chosen: NodeNetwork, setting: Setting, pick: Pick, unreachable: str
) -> Iterator[Finding]:
    name, value = setting.name, setting.value
    status: Status | None = None
    message = found = ""
    extra = surprises(value, node.interfaces or ()) if name.startswith("NCCL") else ()
    if not pick.interfaces:
        status, message = "fail", f"{name}={value!r} names no interface of this node"
        found = _owner(value, chosen) or pick.problem
    elif unreachable:
        status, found = "fail", f"it takes {unreachable}"
        message = f"{name}={value!r} takes an interface that other nodes cannot reach"
    elif chosen.interface not in pick.interfaces:
        status, message = "warn", f"{name}={value!r} does not use the chosen network"
        found = f"it takes {', '.join(pick.interfaces)}"
    elif extra:
        status, message = "warn", f"{name}={value!r} is a prefix, and matches more interfaces"
        found = f"it takes {', '.join(pick.interfaces)}"
    if status is not None:
        own = f"={chosen.interface}" if name.startswith("NCCL") else chosen.interface
        yield finding(
            status,
            node.node,
            message,
            wanted=f"{own} on this node",
            found=found,
            remedy=f"{remove_from(setting)}: clusterctl sets it for each node",
        )


def _owner(value: str, chosen: NodeNetwork) -> str:
    """Return what a value that is an address stands for; empty if it is none."""
    try:
        address = ip_address(value.lstrip("=^"))
    except ValueError:
        return ""
    for each in chosen.candidates:
        if ip_address(each.address) == address:
            return f"the address of {each.interface}; expected is the interface's name"
    return "an address that this node does not have; expected is an interface's name"


@Check(
    "network.settings",
    title="all nodes have the same settings of NCCL and Gloo",
    why="A node's ~/.bashrc, /etc/nccl.conf or ~/.nccl.conf affects only its own ranks. If one node"
    " disables InfiniBand or uses another protocol, all nodes hang or slow down.",
    fix="Put settings for all nodes into `job.env`, and remove those of single nodes.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    blocks=False,
    required_facts=("environment",),
)
def settings(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each node's own settings with most other nodes."""
    for_all = dict(cluster.job.env)
    own = {
        node.node: {
            (setting.name, setting.value)
            for setting in settings_of(node, network, cluster)
            if setting.name.startswith(_PREFIXES)
            and setting.name not in for_all
            and setting.name not in _LIBRARIES
        }
        for node in facts.values()
        if node.answered and node.environment is not None
    }
    yield from _differing(
        own,
        "check its ~/.bashrc, /etc/environment, /etc/nccl.conf and ~/.nccl.conf;"
        " put settings for all nodes into job.env",
    ).values()


def _differing(own: Mapping[str, set[tuple[str, str]]], remedy: str) -> dict[str, Finding]:
    """Return the finding on each node whose pairs are not those of more than half of all."""
    counted = Counter(pair for pairs in own.values() for pair in pairs)
    usual = {pair for pair, count in counted.items() if 2 * count > len(own)}
    names = {node: sorted({key for key, _ in pairs ^ usual}) for node, pairs in own.items()}
    return {
        node: warn(
            node,
            f"its {', '.join(differing)} differs from the other nodes",
            wanted=_shown(usual, differing),
            found=_shown(own[node], differing),
            remedy=remedy,
        )
        for node, differing in names.items()
        if differing
    }


def _shown(pairs: set[tuple[str, str]], names: list[str]) -> str:
    shown = [f"{name}={value}" for name, value in sorted(pairs) if name in names]
    return " ".join(shown) or "not set"


@Check(
    "network.proxy",
    title="all nodes use the same proxies",
    why="A model or data set of the hub loads on the nodes with the proxy only, and the other ranks"
    " wait for them. Programs that speak HTTP or gRPC between nodes need no_proxy.",
    fix="Set the proxies of all nodes in `job.env`, with the subnet of the nodes in no_proxy.",
    source="https://docs.python.org/3/library/urllib.request.html",
    blocks=False,
    applies=lambda node, _cluster: bool(_proxies(node)),
)
def proxy(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the proxies of the sessions; note it if the nodes are not exempt."""
    ours = {name.lower() for name, _ in cluster.job.env}
    found = {
        node.node: {(n, v) for n, v in _proxies(node).items() if n not in ours and n != NO_PROXY}
        for node in facts.values()
        if node.answered and node.environment is not None
    }
    differing = _differing(
        found, "check its ~/.bashrc and /etc/environment; put a proxy for all nodes into job.env"
    )
    exempts_all = functools.cache(functools.partial(_exempts_all, network))
    for name, pairs in found.items():
        exempt = _proxies(facts[name]).get(NO_PROXY, "")
        if name in differing:
            yield differing[name]
        elif pairs and NO_PROXY not in ours and len(network.nodes) > 1 and not exempts_all(exempt):
            yield passed(
                name,
                "no_proxy does not name the other nodes: HTTP and gRPC between them use the proxy",
                wanted=f"no_proxy with {network.subnet or 'the addresses of all nodes'}",
                found=_shown({(NO_PROXY, exempt)} if exempt else set(), [NO_PROXY]),
                remedy="nothing to do for torch, NCCL and Gloo; else set no_proxy in job.env",
            )


def _proxies(node: NodeFacts) -> dict[str, str]:
    """Return a node's proxies; of two spellings most programs read the lower one."""
    given = {**dict(node.environment or ()), **dict(node.job_environment or ())}
    spelled = {name: given.get(name) or given.get(name.upper()) or "" for name in PROXIES}
    return {name: value for name, value in spelled.items() if value}


def _exempts_all(network: Network, no_proxy: str) -> bool:
    """Tell whether no_proxy names every node: by address, subnet or name."""
    entries = [entry for part in no_proxy.split(",") if (entry := part.strip())]
    subnets = []
    for entry in entries:
        try:
            subnets.append(ip_network(entry, strict=False))
        except ValueError:
            continue  # the name of a host
    names = frozenset(entries)
    domains = tuple("." + entry.lstrip(".") for entry in entries)
    return "*" in names or all(
        peer in names
        or peer.endswith(domains)
        or any(ip_address(node.address) in subnet for subnet in subnets)
        for peer, node in network.nodes.items()
    )
