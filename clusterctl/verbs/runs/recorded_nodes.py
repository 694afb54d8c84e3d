"""Compares the nodes of a recorded run with those of an inventory."""

from __future__ import annotations

import logging
from dataclasses import replace

from clusterctl.inventory.cluster import Cluster
from clusterctl.verbs.runs.records import RunRecord

logger = logging.getLogger("clusterctl")

_REACH = ("host", "ssh", "local")
"""The fields that say how to reach a node; the others stay as the run was launched."""
_COMPARED = (*_REACH, "gpus", "procs", "python", "address", "state")


def reached(record: RunRecord, now: Cluster) -> Cluster:
    """Return the run's cluster, with the addresses and logins of the inventory.

    The record wins if the inventory is of another cluster, or lacks a node of the run, and for a
    run in a Slurm allocation: only through that one its nodes are reached.
    """
    if record.cluster.slurm_job or now.name != record.cluster.name or lacks(record, now):
        return record.cluster
    _report(record, now, _REACH)
    nodes = []
    for node in record.cluster.nodes:
        current = now.node(node.name)
        nodes.append(replace(node, host=current.host, ssh=current.ssh, local=current.local))
    # Those left out may have joined, since the launch or since this machine heard of the run.
    cluster = replace(record.cluster, left_out=(*now.nodes, *now.left_out))
    return cluster.with_nodes(tuple(nodes))


def lacks(record: RunRecord, now: Cluster) -> bool:
    """Tell whether the inventory lacks nodes of the run, and warn about it."""
    names = {node.name for node in now.nodes}
    missing = [node.name for node in record.cluster.nodes if node.name not in names]
    if missing:
        report_ignored(record, now, f"it lacks {', '.join(missing)}")
    return bool(missing)


def report_ignored(record: RunRecord, now: Cluster, why: str) -> None:
    """Warn that the inventory is not used for a run."""
    logger.warning("%s: %s; using the nodes as %s was launched", now.file, why, record.run)


def report_changes(record: RunRecord, now: Cluster) -> None:
    """Warn about changes of the inventory since the launch that a resume will use."""
    _report(record, now, _COMPARED)


def _report(record: RunRecord, now: Cluster, compared: tuple[str, ...]) -> None:
    for node in record.cluster.nodes:
        other = now.node(node.name)
        changed = [name for name in compared if getattr(node, name) != getattr(other, name)]
        if changed:
            logger.warning(
                "%s: %s of %s changed since %s was launched; using the inventory's",
                now.file,
                ", ".join(changed),
                node.name,
                record.run,
            )
