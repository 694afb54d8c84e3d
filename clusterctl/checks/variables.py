"""Whether the variables that the libraries listen to are right, and the same, on every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from clusterctl.checks.addresses import SUBNET
from clusterctl.checks.finding import Finding, Status
from clusterctl.checks.registry import Facts, check
from clusterctl.facts.nodefacts import Interface, NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network, NodeNetwork
from clusterctl.network.simulate import (
    Pick,
    gloo_picks,
    nccl_picks,
    surprises,
    tensorpipe_picks,
)

IFNAME = "network.ifname"

_LIBRARIES: dict[str, Callable[[str, Iterable[Interface]], Pick]] = {
    "NCCL_SOCKET_IFNAME": nccl_picks,
    "GLOO_SOCKET_IFNAME": gloo_picks,
    "TP_SOCKET_IFNAME": tensorpipe_picks,
}


_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TP_")


@check(
    IFNAME,
    title="interface names that the job sets are right on every node",
    why="One name for all nodes is wrong where a node calls its interface otherwise; each library"
    " reads the value in its own way. Unset, clusterctl sets each node's own.",
    after=(SUBNET,),
)
def ifname(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Ask what each library would pick there."""
    for name, value in cluster.job.env:
        picks = _LIBRARIES.get(name)
        if picks is None or not value:
            continue
        for node in facts.values():
            chosen = network.nodes.get(node.node)
            if node.interfaces is not None and chosen is not None:
                pick = picks(value, node.interfaces)
                yield from _judge(node, chosen, name, value, pick)


def _judge(
    node: NodeFacts, chosen: NodeNetwork, name: str, value: str, pick: Pick
) -> Iterator[Finding]:
    status: Status | None = None
    message = found = ""
    extra = surprises(value, node.interfaces or ()) if name.startswith("NCCL") else ()
    if not pick.interfaces:
        status, message = "fail", f"{name}={value!r} names no interface of this node"
        found = pick.problem
    elif chosen.interface not in pick.interfaces:
        status, message = "warn", f"{name}={value!r} leads past the chosen network"
        found = f"it takes {', '.join(pick.interfaces)}"
    elif extra:
        status, message = "warn", f"{name}={value!r} is a prefix, and takes more than it names"
        found = f"it takes {', '.join(pick.interfaces)}"
    if status is not None:
        own = f"={chosen.interface}" if name.startswith("NCCL") else chosen.interface
        yield Finding(
            check=IFNAME,
            status=status,
            nodes=(node.node,),
            message=message,
            wanted=f"{own} here",
            found=found,
            remedy=f"take {name} out of job.env: clusterctl sets it for each node",
        )


@check(
    "network.settings",
    title="the nodes bring no settings of NCCL or Gloo of their own",
    why="A node's ~/.bashrc, /etc/nccl.conf or ~/.nccl.conf is read by its ranks only: one node"
    " without InfiniBand, or with another protocol, hangs or slows all.",
    blocks=False,
)
def settings(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare what each node sets by itself with what most nodes do."""
    ours = {*_LIBRARIES, *(name for name, _ in cluster.job.env)}
    own = {
        node.node: {
            (name, value)
            for name, value in (*node.nccl_conf, *node.environment)
            if name.startswith(_PREFIXES) and name not in ours
        }
        for node in facts.values()
        if node.answered
    }
    counted = Counter(pair for pairs in own.values() for pair in pairs)
    usual = {pair for pair, count in counted.items() if 2 * count > len(own)}
    for name, pairs in own.items():
        if pairs != usual:
            differing = sorted({key for key, _ in pairs ^ usual})
            yield Finding(
                check="network.settings",
                status="warn",
                nodes=(name,),
                message=f"it sets {', '.join(differing)} otherwise than the other nodes",
                wanted=_shown(usual, differing),
                found=_shown(pairs, differing),
                remedy="look into its ~/.bashrc, /etc/environment, /etc/nccl.conf, ~/.nccl.conf;"
                " what all nodes need belongs into job.env",
            )


def _shown(pairs: set[tuple[str, str]], names: list[str]) -> str:
    told = [f"{name}={value}" for name, value in sorted(pairs) if name in names]
    return " ".join(told) or "not set"
