"""The name of a machine's lock: who holds it runs there."""

from __future__ import annotations

from clusterctl.inventory.cluster import Cluster, Node

NAME = "clusterctl-run"


def lock_name(cluster: Cluster, node: Node) -> str:
    """Return the lock of a node: the machine's own, unless its machine is shared on purpose."""
    if not cluster.same_machine:
        return NAME
    return f"{NAME}-{node.ssh.port or node.name}"
