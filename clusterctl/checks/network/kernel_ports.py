"""Whether the kernels of the nodes have ports and room for the connections of a run."""

from collections.abc import Iterator

from clusterctl.checks.finding import Finding, finding, warn
from clusterctl.checks.others import outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

NEARLY_FULL = 0.8
FULL = 0.99


@Check(
    "network.conntrack",
    title="the firewalls have room for more connections",
    why="A firewall that tracks connections drops new ones once its table is full.",
    fix="Raise net.netfilter.nf_conntrack_max, or do not track the data network.",
    source="https://docs.kernel.org/networking/nf_conntrack-sysctl.html",
    blocks=False,
    applies=lambda node, _cluster: node.conntrack is not None,
)
def conntrack(node: NodeFacts) -> Iterator[Finding]:
    """Compare the number of tracked connections with the limit."""
    count, limit = node.conntrack or (0, 1)
    if count >= NEARLY_FULL * limit:
        yield finding(
            "fail" if count >= FULL * limit else "warn",
            node.node,
            "its table of tracked connections is full"
            if count >= FULL * limit
            else "its table of tracked connections is nearly full",
            wanted=f"less than {NEARLY_FULL:.0%} of {limit}",
            found=f"{count} connections",
            remedy=f"sudo sysctl -w net.netfilter.nf_conntrack_max={4 * limit} (on the node)",
        )


@Check(
    "network.ephemeral-ports",
    title="the kernel takes ephemeral ports from one range, without the master port",
    why="NCCL and Gloo listen on ephemeral ports: a firewall must open the same range on all nodes."
    " If the master port is one of them, any program may be given it before the run starts.",
    fix="Set net.ipv4.ip_local_port_range alike on all nodes, and reserve the master port.",
    source="https://docs.kernel.org/networking/ip-sysctl.html",
    blocks=False,
    applies=lambda node, _cluster: node.ephemeral_ports is not None,
)
def ephemeral_ports(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the ranges, and look for the master port in that of the master."""
    ranges = {node.node: node.ephemeral_ports for node in facts.values() if node.ephemeral_ports}
    for name, found, usual in outliers(ranges):
        yield warn(
            name,
            "its ephemeral ports are others than those of the other nodes",
            wanted=_range(usual),
            found=_range(found),
            remedy=f'sudo sysctl -w net.ipv4.ip_local_port_range="{usual[0]} {usual[1]}"'
            " (on the node); write it to /etc/sysctl.d to keep it",
        )
    master = facts.get(cluster.master.name)
    low, high = (master.ephemeral_ports if master else None) or (1, 0)
    # On one machine all ranks start at once: nothing else is likely to come in between.
    port = network.master_port if network.kind != "one machine" else 0
    reserved = (master.reserved_ports if master else None) or ()
    if low <= port <= high and not any(first <= port <= last for first, last in reserved):
        yield warn(
            cluster.master.name,
            f"any program may be given the master port {port}: it is an ephemeral port",
            wanted=f"a port outside {_range((low, high))}, or a reserved one",
            found=f"{port} ({network.master_port_why})",
            remedy=f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={_reserving(reserved, port)}"
            f" (on {cluster.master.name}), or remove network.master_port from the inventory",
        )


def _range(ports: tuple[int, int]) -> str:
    return f"{ports[0]} to {ports[1]}"


def _reserving(reserved: tuple[tuple[int, int], ...], port: int) -> str:
    """Return the setting with one port more: it replaces the whole list."""
    listed = (f"{low}-{high}" if low < high else str(low) for low, high in reserved)
    return ",".join([*listed, str(port)])
