"""Clusters, facts and networks to plan with, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.network.choice import Candidate, Network, NodeNetwork
from clusterctl.plan.effective import effective
from clusterctl.plan.make import make_plan
from clusterctl.plan.options import Options
from clusterctl.plan.plan import Plan

Planner = Callable[..., Plan]

GPUS = (8, 4, 8)


def node(n: int, **changes: object) -> Node:
    made = Node(
        host=f"10.0.0.{n}", name=f"n{n}", ssh=Ssh(), python="/venv/bin/python", workdir="/code"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def facts(n: int, gpus: int, **changes: object) -> NodeFacts:
    devices = tuple(Gpu(index=i, name="H100") for i in range(gpus))
    made = NodeFacts(
        node=f"n{n}",
        uid=1000,
        gpus=Gpus(tool="nvidia-smi", devices=devices),
        python=Python(asked="python3", found=True, executable="/usr/bin/python3.11"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def network(nodes: int = len(GPUS)) -> Network:
    return Network(
        kind="subnet",
        nodes={
            f"n{n}": NodeNetwork(
                address=f"10.0.0.{n}",
                interface=f"eth{n}",
                subnet="10.0.0.0/24",
                speed_mbps=1000,
                candidates=(
                    Candidate(
                        interface="wlan0",
                        address="192.168.0.9",
                        subnet="192.168.0.0/24",
                        speed_mbps=None,
                    ),
                ),
                why="the only subnet that all 3 nodes share",
            )
            for n in range(nodes)
        },
        subnet="10.0.0.0/24",
        master_address="10.0.0.0",
        master_port=29500,
        master_port_why="PyTorch's default",
        why="the only subnet that all 3 nodes share",
    )


@pytest.fixture
def plan() -> Planner:
    """Plan three nodes of 8, 4 and 8 GPUs, with changes."""

    def make(
        *,
        job: Job | None = None,
        options: Options | None = None,
        nodes: tuple[Node, ...] = tuple(node(n) for n in range(len(GPUS))),
        known: dict[str, NodeFacts] | None = None,
        same_machine: bool = False,
        master_port: int | None = None,
    ) -> Plan:
        known = known or {f"n{n}": facts(n, gpus) for n, gpus in enumerate(GPUS)}
        cluster = Cluster(
            name="lab",
            nodes=nodes,
            same_machine=same_machine,
            master_port=master_port,
            job=job or Job(command=("-m", "train", "--lr", "1e-4")),
        )
        wanted = effective(cluster, options or Options())
        net = replace(network(), master_port=wanted.master_port or 29500)
        return make_plan(wanted, known, net, run="lab-1")

    return make


def infiniband() -> tuple[RdmaPort, ...]:
    return (RdmaPort(device="mlx5_0", port=1, state="ACTIVE", link_layer="InfiniBand"),)
