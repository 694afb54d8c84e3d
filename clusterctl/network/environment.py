"""The variables that make each library use the chosen network, each in its own syntax.

One string is not valid for all three: NCCL takes `=eth0` for "this very name" and plain names as
prefixes; Gloo aborts on `=eth0`; TensorPipe takes exact names and else falls back to loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.choice import NodeNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of a node's ranks, and where its value came from."""

    name: str
    value: str
    why: str


def environment(
    network: NodeNetwork, facts: NodeFacts, *, user: Mapping[str, str]
) -> tuple[Variable, ...]:
    """Return what to set on this node; what the user set is left out, for it wins.

    Args:
        network: what this node uses.
        facts: of this node.
        user: the job's own environment.
    """
    interface = network.interface
    why = f"{network.address} on {network.subnet}: {network.why}"
    wanted = [
        Variable(name="NCCL_SOCKET_IFNAME", value=f"={interface}", why=why),
        Variable(name="GLOO_SOCKET_IFNAME", value=interface, why=why),
        Variable(name="TP_SOCKET_IFNAME", value=interface, why=why),
    ]
    devices = sorted(
        {p.device for p in facts.rdma or () if p.active and p.link_layer == "InfiniBand"}
    )
    if devices:
        wanted.append(
            Variable(
                name="NCCL_IB_HCA",
                value="=" + ",".join(devices),
                why="InfiniBand devices with an active port",
            )
        )
    return tuple(variable for variable in wanted if variable.name not in user)
