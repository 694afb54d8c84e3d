"""Whether a real all-reduce gives the right sum; `--deep` lets the nodes try one."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.checks.addresses import DUPLICATE, SUBNET
from clusterctl.checks.connections import PAIRS, PORT, REACH
from clusterctl.checks.finding import Finding, fail, passed
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software import FOUND, TORCH
from clusterctl.checks.wording import last_line
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

DEEP = "deep.all-reduce"


@Check(
    DEEP,
    title="an all-reduce across all nodes gives the right sum",
    why="It runs the job's own torch on the chosen network: NCCL on GPUs, else Gloo.",
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
            found=f"{slowest.gbps:.2f} Gb/s per node with 64 MiB",
        )
