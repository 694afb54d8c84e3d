"""The GPUs that a run will use on a node."""

from __future__ import annotations

from clusterctl.facts.gpuset import chosen_gpus
from clusterctl.facts.nodefacts import Gpu, NodeFacts
from clusterctl.inventory.cluster import Cluster


def planned_gpus(cluster: Cluster, facts: NodeFacts) -> int:
    """Return how many GPUs a run will use: as set in the inventory, else as found."""
    node = cluster.node(facts.node)
    chosen = chosen_gpus(dict(cluster.job.env), cluster.job.env_from, facts.gpus)
    found = len(chosen or (facts.gpus.devices if facts.gpus else ()))
    if node.gpus_wanted is not None:
        return min(found, node.gpus_wanted) if chosen else node.gpus_wanted
    return found if node.gpus_limit is None else min(found, node.gpus_limit)


def chosen_by_job(cluster: Cluster, facts: NodeFacts) -> tuple[Gpu, ...]:
    """Return the only GPUs that a run may use; empty: it may use the whole machine."""
    if not planned_gpus(cluster, facts):
        return ()
    return chosen_gpus(dict(cluster.job.env), cluster.job.env_from, facts.gpus)
