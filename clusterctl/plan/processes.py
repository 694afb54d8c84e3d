"""Counts the ranks of a node, with their device and the origin of the number."""

from typing import Literal

from clusterctl.errors import LaunchRefused
from clusterctl.facts.gpu.accelerators import VISIBLE, Gpu, chosen_gpus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The ranks of a node."""

    procs: int
    device: Literal["cuda", "cpu"]
    origin: str
    gpus: int = 0
    """GPUs for all ranks of the node together."""
    chosen: tuple[Gpu, ...] = ()
    """The only GPUs that the job lets them see; empty: the run uses the whole machine."""


def count_processes(cluster: Cluster, node: Node, facts: NodeFacts) -> Processes:
    """Return the ranks of a node: one per GPU, or CPU processes if it has or wants none."""
    if node.gpus is not None:
        gpus, origin = node.gpus, "the inventory's gpus"
    elif node.gpus_limit == 0:
        gpus, origin = 0, cluster.origin("gpus", "--gpus")
    elif facts.gpus is not None:
        gpus, origin = len(facts.gpus.devices), "the GPUs found"
    else:
        raise LaunchRefused(
            f"{node.name}: the number of its GPUs is unknown ({facts.why_unknown('gpus')})",
            hint="set `gpus: N` for this node in the inventory",
        )
    if node.gpus_limit is not None and node.gpus_limit < gpus:
        gpus, origin = node.gpus_limit, cluster.origin("gpus", "--gpus")
    chosen = chosen_gpus(dict(cluster.job.env), cluster.job.env_from, facts.gpus) if gpus else ()
    if chosen and len(chosen) < gpus:
        gpus, origin = len(chosen), cluster.origin(f"env.{VISIBLE}", f"{VISIBLE} in job.env")
    procs = cluster.job.procs_per_node
    if procs is not None:
        origin = cluster.origin("procs_per_node", "job.procs_per_node")
    if gpus:
        return Processes(
            procs=procs or gpus, device="cuda", origin=origin, gpus=gpus, chosen=chosen
        )
    if procs is not None:
        return Processes(procs=procs, device="cpu", origin=origin)
    if node.procs is not None:
        return Processes(procs=node.procs, device="cpu", origin="the inventory's procs")
    return Processes(procs=1, device="cpu", origin=f"built-in, without GPUs ({origin})")


def planned_gpus(cluster: Cluster, facts: NodeFacts) -> int:
    """Return how many GPUs a run will use on a node; 0 if that is unknown."""
    node = cluster.node(facts.node)
    known = facts.gpus is not None or node.gpus_wanted is not None
    return count_processes(cluster, node, facts).gpus if known else 0


def chosen_by_job(cluster: Cluster, facts: NodeFacts) -> tuple[Gpu, ...]:
    """Return the only GPUs that a run may use; empty: it may use the whole machine."""
    if not planned_gpus(cluster, facts):
        return ()
    return count_processes(cluster, cluster.node(facts.node), facts).chosen
