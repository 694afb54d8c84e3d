"""What the inventory plans for a node."""

from __future__ import annotations

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster


def planned_gpus(cluster: Cluster, facts: NodeFacts) -> int:
    """Return how many GPUs a run will use there: what is written, else what was found."""
    node = cluster.node(facts.node)
    if node.gpus_wanted is not None:
        return node.gpus_wanted
    found = len(facts.gpus.devices) if facts.gpus else 0
    return found if node.gpus_limit is None else min(found, node.gpus_limit)


def words_of(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return a job's command as it is run: by the interpreter where it is a module or a script."""
    if command[0].startswith("-") or command[0].endswith(".py"):
        return (python, *command)
    return command
