"""The arguments by which a node's agent finds what it keeps of a cluster's runs."""

from __future__ import annotations

from clusterctl.inventory.cluster import Cluster, Node


def node_args(cluster: Cluster, node: Node) -> dict[str, object]:
    """Return the arguments that name where a node keeps its parts of all runs."""
    args: dict[str, object] = {"cluster": cluster.name, "node": node.name}
    return args | ({"state": node.state} if node.state else {})


def run_args(run: str, cluster: Cluster, node: Node) -> dict[str, object]:
    """Return the arguments that name a node's part of a run."""
    return {**node_args(cluster, node), "run": run}
