"""The variables that make each library use the chosen network, each in its own syntax.

No string suits all three. NCCL reads `=eth0` as an exact name, and plain names as prefixes. Gloo
aborts on `=eth0`. TensorPipe takes exact names, else it falls back to loopback.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.choice import NodeNetwork, default_address

OWN_ADDRESS = ("VLLM_HOST_IP", "SGLANG_HOST_IP")
"""vLLM and SGLang tell other nodes this address, else that of the default route."""


@dataclass(frozen=True, slots=True)
class NetworkVariable:
    """One variable of a node's ranks, and why it has its value."""

    name: str
    value: str
    why: str


def environment(network: NodeNetwork, facts: NodeFacts) -> tuple[NetworkVariable, ...]:
    """Return the variables to set on this node; the job's own have priority."""
    interface = network.interface
    why = f"{network.address} on {network.subnet}: {network.why}"
    wanted = [
        NetworkVariable("NCCL_SOCKET_IFNAME", f"={interface}", why),
        NetworkVariable("GLOO_SOCKET_IFNAME", interface, why),
        NetworkVariable("TP_SOCKET_IFNAME", interface, why),
    ]
    devices = sorted(
        {p.device for p in facts.rdma or () if p.active and p.link_layer == "InfiniBand"}
    )
    if devices:
        why = "InfiniBand devices with an active port"
        wanted.append(NetworkVariable("NCCL_IB_HCA", "=" + ",".join(devices), why))
    if (other := default_address(facts, network)) is not None:
        why = f"the default route goes through {other.interface} ({other.address})"
        wanted += [NetworkVariable(name, network.address, why) for name in OWN_ADDRESS]
    return tuple(wanted)
