"""Whether a real all-reduce works and each pair of nodes is fast; `--deep` lets the nodes try."""

import shlex
from collections.abc import Iterator, Mapping
from statistics import median

from clusterctl.checks.finding import Finding, fail, passed, skip, warn
from clusterctl.checks.gpu.expected_speed import Expectation, between_nodes, report
from clusterctl.checks.network.addresses import DUPLICATE, SUBNET
from clusterctl.checks.network.connections import PAIRS, PORT, REACH
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.python import FOUND, TORCH
from clusterctl.checks.wording import counted, last_line, main_line
from clusterctl.facts.network.pairwise import Collective
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

DEEP = "deep.all-reduce"
ACROSS = "deep.across"
RAILS = "deep.rails"
TRANSPORT = "deep.transport"
SLOW_NODE, SLOW_PAIR = 0.5, 0.25
"""Parts of the bandwidth of a usual node below which a node, or a pair of good nodes, is slow."""
MIB, GIB = 1 << 20, 1 << 30


def with_block_size(block_bytes: int | None) -> str:
    """Return with what a speed was measured: ` with 256 MiB`; empty: unknown."""
    if not block_bytes:
        return ""
    return (
        f" with {block_bytes / GIB:g} GiB"
        if block_bytes >= GIB
        else f" with {block_bytes / MIB:g} MiB"
    )


@Check(
    DEEP,
    title="an all-reduce across all nodes gives the right sum",
    why="It runs the job's own torch on the chosen network, with Gloo on the CPUs. Without it, no"
    " GPU needs to be tried.",
    fix="Correct what the other checks found first. Then run the job with --debug, which makes"
    " NCCL log what it does.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(SUBNET, DUPLICATE, PAIRS, PORT, REACH, FOUND, TORCH, "python.cuda"),
    blocks=False,
    applies=lambda node, _cluster: node.collective is not None,
)
def all_reduce(facts: Facts, network: Network) -> Iterator[Finding]:
    """Report each node's error; if there is none, the speed."""
    took_part = {n.node: n.collective for n in facts.values() if n.collective is not None}
    for name, outcome in took_part.items():
        if outcome.right:
            continue
        yield fail(
            name,
            "the all-reduce across the nodes failed",
            wanted=f"an all-reduce over {len(took_part)} nodes through {network.master_address}"
            f" port {network.master_port}",
            found=last_line(outcome.error) or "a wrong sum",
            remedy="clusterctl launch --debug shows what NCCL and Gloo do",
        )
    if took_part and all(outcome.right for outcome in took_part.values()):
        slowest = min(took_part.values(), key=lambda outcome: outcome.gbps)
        yield passed(
            tuple(took_part),
            f"the {slowest.backend} all-reduce across the nodes reaches {slowest.gbps:.2f} Gb/s",
            wanted="the right sum",
            found=f"{slowest.gbps:.2f} Gb/s per node{with_block_size(slowest.block_bytes)}",
        )


@Check(
    ACROSS,
    title="an all-reduce across the nodes' GPUs gives the right sum, as fast as the network allows",
    why="It runs NCCL between the nodes, as the job's first step will. All rails work at the same"
    " time: the first GPUs of all nodes, the second ones, and so on.",
    fix="Run the job with --debug, which makes NCCL log what it does. Compare its choice of network"
    " with `clusterctl check --explain-network`.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(DEEP, RAILS, TRANSPORT),
    blocks=False,
    applies=lambda node, _cluster: node.across is not None,
)
def across(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report each node's error; if there is none, the speed, and what the network should give."""
    took_part = {n.node: n.across for n in facts.values() if n.across is not None}
    for name, outcome in took_part.items():
        if not outcome.right:
            yield fail(
                name,
                "the nodes cannot exchange data after the first rungs worked",
                wanted=f"an all-reduce over {len(took_part)} nodes, then each pair of them",
                found=main_line(outcome.error) or "a wrong sum",
                remedy="clusterctl launch --debug shows what NCCL and Gloo do",
            )
    if took_part and all(outcome.right for outcome in took_part.values()):
        rails = max(1, *(len(facts[name].trials.rails) for name in took_part))
        expected = between_nodes(facts, tuple(took_part), network, cluster, rails=rails)
        yield _speed_across(took_part, expected, rails)


def _speed_across(
    took_part: Mapping[str, Collective], expected: Expectation | None, rails: int
) -> Finding:
    """Compare the slowest node, whose pace is everybody's, with the links."""
    slowest = min(took_part.values(), key=lambda outcome: outcome.gbps)
    found = f"{slowest.gbps:.4g} Gb/s per node{with_block_size(slowest.block_bytes)} on each of"
    found += f" {counted(rails, 'GPU')}"
    if expected is not None and slowest.gbps < expected.least:
        return warn(
            tuple(took_part),
            "the all-reduce across the nodes is far slower than their network",
            wanted=expected.wanted(),
            found=found,
            remedy="clusterctl check --explain-network; then nvidia-smi topo -m (on the node)"
            " shows which network card each GPU is near",
        )
    does = f"the {slowest.backend} all-reduce across the nodes reaches"
    return report(tuple(took_part), does, slowest.gbps, expected, found)


@Check(
    "deep.pairs",
    title="every pair of nodes exchanges data at the usual speed",
    why="The slowest node or connection sets the pace of every step.",
    fix="Look at the link of the slow node: cable, switch port, MTU, errors, what else uses it.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(DEEP, RAILS),
    blocks=False,
    applies=lambda node, _cluster: node.collective is not None and bool(node.collective.pairs),
)
def pairs(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each node's fastest partner, then each pair, with those of a usual node."""
    rates = pair_rates(facts)
    best: dict[str, float] = {}
    for pair, gbps in rates.items():
        for name in pair:
            best[name] = max(best.get(name, 0.0), gbps)
    if not best:
        return
    usual = median(best.values())
    slow = {name for name, gbps in best.items() if gbps < SLOW_NODE * usual}
    for name in sorted(slow):
        place = network.nodes.get(name)
        yield warn(
            name,
            "it exchanges data slowly with every other node",
            wanted=f"about {usual:.2f} Gb/s, as other nodes",
            found=f"{best[name]:.2f} Gb/s with its fastest partner",
            remedy=f"ethtool {shlex.quote(place.interface if place else 'INTERFACE')} (on the"
            " node); check cable, switch port and the load of its CPUs",
        )
    for pair, gbps in rates.items():
        if gbps < SLOW_PAIR * usual and not slow & set(pair):
            yield warn(
                pair,
                f"{pair[0]} and {pair[1]} exchange data slowly, each is fast with others",
                wanted=f"about {usual:.2f} Gb/s",
                found=f"{gbps:.2f} Gb/s",
                remedy=f"traceroute {_address(pair[1], network)} (on {pair[0]});"
                " check the switches between them",
            )
    measured, of = len(rates), len(best) * (len(best) - 1) // 2
    if measured < of:
        yield skip(
            tuple(best),
            f"there was time for {measured} of {of} pairs; the speed of the others is unknown",
            found=f"{measured} of {of} pairs",
        )
    others = tuple(name for name in best if name not in slow)
    yield _usual_speed(facts, others, usual, network, cluster)


def _address(name: str, network: Network) -> str:
    place = network.nodes.get(name)
    return shlex.quote(place.address) if place else "ADDRESS"


def pair_rates(facts: Facts) -> Mapping[tuple[str, str], float]:
    """Return Gb/s of each pair, the slower direction."""
    to = {
        (node.node, rate.peer): rate.gbps
        for node in facts.values()
        if node.collective and node.collective.right
        for rate in node.collective.pairs
    }
    order = list(facts)
    return {
        (a, b): min(gbps, to[b, a])
        for (a, b), gbps in to.items()
        if (b, a) in to and a in order and b in order and order.index(a) < order.index(b)
    }


def _usual_speed(
    facts: Facts, names: tuple[str, ...], usual: float, network: Network, cluster: Cluster
) -> Finding:
    """Compare with the links, if CPUs exchanged the data; `deep.across` does that for GPUs."""
    found = f"{usual:.2f} Gb/s between two nodes, by the median of their fastest partners"
    if any(facts[name].across for name in names):
        message = f"two nodes exchange {usual:.2f} Gb/s"
        return passed(names, message, wanted="the usual speed", found=found)
    expected = between_nodes(facts, names, network, cluster, rails=0)
    if expected is not None and usual < expected.least:
        return warn(
            names,
            "the network is far slower than its links",
            wanted=expected.wanted(),
            found=f"{usual:.2f} Gb/s between two nodes",
            remedy="iperf3 between two nodes; check MTU, errors and the load of the CPUs",
        )
    return report(names, "two nodes exchange", usual, expected, found)
