"""Whether a real all-reduce works and each pair of nodes is fast; `--deep` lets the nodes try."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from statistics import median

from clusterctl.checks.addresses import DUPLICATE, SUBNET
from clusterctl.checks.connections import PAIRS, PORT, REACH
from clusterctl.checks.finding import Finding, fail, passed, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software import FOUND, TORCH
from clusterctl.checks.wording import gist, last_line
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

DEEP = "deep.all-reduce"
ACROSS = "deep.across"
SLOW_NODE, SLOW_PAIR = 0.5, 0.25
"""Parts of the bandwidth of a usual node below which a node, or a pair of good nodes, is slow."""
SLOW_NETWORK = 0.05
"""Part of the links' speed; one connection of one process uses only a part of a fast link."""
MBPS = 1000


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
def all_reduce(facts: Facts, network: Network, _cluster: Cluster) -> Iterator[Finding]:
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
            found=f"{slowest.gbps:.2f} Gb/s per node with 16 MiB",
        )


@Check(
    ACROSS,
    title="an all-reduce over a GPU of each node gives the right sum",
    why="It runs NCCL between the nodes, as the job's first step will.",
    fix="Run the job with --debug, which makes NCCL log what it does. Compare its choice of network"
    " with `clusterctl check --explain-network`.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(DEEP,),
    blocks=False,
    applies=lambda node, _cluster: node.across is not None,
)
def across(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Report each node's error; if there is none, the speed."""
    took_part = {n.node: n.across for n in facts.values() if n.across is not None}
    for name, outcome in took_part.items():
        if not outcome.right:
            yield fail(
                name,
                "the nodes cannot exchange data after the first rungs worked",
                wanted=f"an all-reduce over {len(took_part)} nodes, then each pair of them",
                found=gist(outcome.error) or "a wrong sum",
                remedy="clusterctl launch --debug shows what NCCL and Gloo do",
            )
    if took_part and all(outcome.right for outcome in took_part.values()):
        slowest = min(took_part.values(), key=lambda outcome: outcome.gbps)
        yield passed(
            tuple(took_part),
            f"the {slowest.backend} all-reduce across the nodes reaches {slowest.gbps:.2f} Gb/s",
            wanted="the right sum",
            found=f"{slowest.gbps:.2f} Gb/s per node with 16 MiB",
        )


@Check(
    "deep.pairs",
    title="every pair of nodes exchanges data at the usual speed",
    why="The slowest node or connection sets the pace of every step.",
    fix="Look at the link of the slow node: cable, switch port, MTU, errors, what else uses it.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(DEEP, ACROSS),
    blocks=False,
    applies=lambda node, _cluster: node.collective is not None and bool(node.collective.pairs),
)
def pairs(facts: Facts, network: Network, _cluster: Cluster) -> Iterator[Finding]:
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
    yield from _compare_with_links(tuple(n for n in best if n not in slow), usual, network)


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


def _compare_with_links(
    names: tuple[str, ...], usual: float, network: Network
) -> Iterator[Finding]:
    speeds = [place.speed_mbps for name in names if (place := network.nodes.get(name))]
    link = min((speed for speed in speeds if speed), default=0) / MBPS
    if usual < SLOW_NETWORK * link:
        yield warn(
            names,
            "the network is far slower than its links",
            wanted=f"a good part of {link:g} Gb/s",
            found=f"{usual:.2f} Gb/s between two nodes",
            remedy="iperf3 between two nodes; check MTU, errors and the load of the CPUs",
        )
    else:
        yield passed(
            names,
            f"two nodes exchange {usual:.2f} Gb/s",
            wanted="the usual speed",
            found=f"{usual:.2f} Gb/s between two nodes, by the median of their fastest partners",
        )
