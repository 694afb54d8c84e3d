"""Whether a real collective gives the right sum, judged where `--deep` let the nodes try one."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.checks.addresses import DUPLICATE, SUBNET
from clusterctl.checks.connections import PAIRS, PORT, REACH
from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import Facts, check
from clusterctl.checks.software import FOUND, TORCH
from clusterctl.checks.wording import last_line
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

DEEP = "deep.all-reduce"


@check(
    DEEP,
    title="the nodes add up numbers together",
    why="The job's own torch on the chosen network: NCCL where there are GPUs, else Gloo.",
    after=(SUBNET, DUPLICATE, PAIRS, PORT, REACH, FOUND, TORCH, "python.cuda"),
    blocks=False,
    applies=lambda node, _cluster: node.collective is not None,
)
def all_reduce(facts: Facts, network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Say what each node's torch said; where all are well, how fast it was."""
    took_part = {n.node: n.collective for n in facts.values() if n.collective is not None}
    for name, outcome in took_part.items():
        if outcome.right:
            continue
        yield Finding(
            check=DEEP,
            status="fail",
            nodes=(name,),
            message="the sum across the nodes failed",
            wanted=f"a sum over {len(took_part)} nodes by {network.master_address}"
            f" port {network.master_port}",
            found=last_line(outcome.error) or "a wrong sum",
            remedy="clusterctl launch --debug shows what NCCL and Gloo do",
        )
    if took_part and all(outcome.right for outcome in took_part.values()):
        slowest = min(took_part.values(), key=lambda outcome: outcome.gbps)
        yield Finding(
            check=DEEP,
            status="pass",
            nodes=tuple(took_part),
            message=f"{slowest.backend} sums across the nodes at {slowest.gbps:.2f} Gb/s",
            wanted="the right sum",
            found=f"{slowest.gbps:.2f} Gb/s a node, of 64 MiB",
        )
