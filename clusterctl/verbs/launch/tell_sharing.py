"""Tells the nodes of runs that share a folder of checkpoints of each other, after a launch."""

import time
from collections.abc import Collection

from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.answers import NotedAnswer
from clusterctl.plan.plan import Plan
from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Emit, Notice
from clusterctl.verbs.rpc import Nodes, call_validated, run_args

_SECONDS = 10.0


def tell_sharing(nodes: Nodes, cluster: Cluster, plan: Plan, *, emit: Emit) -> None:
    """Let no restart of these runs take the other's checkpoints for its own.

    Args:
        cluster: the nodes of the plan; those of the other runs may be left out.
    """
    began = time.time()
    for other in plan.sharing:
        own = [node.node for node in (*plan.nodes, *plan.spares)]
        _tell(nodes, cluster, plan.run, own, (other.run, other.began), emit=emit)
        _tell(nodes, cluster, other.run, other.nodes, (plan.run, began), emit=emit)


def _tell(
    nodes: Nodes,
    cluster: Cluster,
    run: str,
    names: Collection[str],
    other: tuple[str, float],
    *,
    emit: Emit,
) -> None:
    told = {"others": [dict(zip(("run", "began"), other, strict=True))], "now": time.time()}
    requests = {
        node.name: Request(op="note-runs", args={**run_args(run, cluster, node), **told})
        for node in (*cluster.nodes, *cluster.left_out)
        if node.name in names
    }
    _, errors = call_validated(nodes, requests, NotedAnswer, timeout=_SECONDS)
    if errors:
        silent = fold_hosts(error.node or "" for error in errors)
        text = f"{silent}: a restart of {run} may take checkpoints of {other[0]} for its own"
        emit(Notice(text=text, level="warning"))
