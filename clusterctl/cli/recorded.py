"""The nodes of a recorded run as the inventory in force has them now, and what differs.

The inventory counts if it is of the run's cluster and has all of its nodes: given by `-i`, by the
variable, or found in the current folder. Otherwise the record counts.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import replace
from pathlib import Path

from clusterctl.cli.inventory_option import VARIABLE, inventory_path, load_all
from clusterctl.errors import InventoryError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.load import fingerprint
from clusterctl.inventory.machine import is_here, normal_address, own_addresses
from clusterctl.inventory.select import select
from clusterctl.verbs.records import RunRecord

logger = logging.getLogger("clusterctl")

_REACH = ("host", "ssh", "local")
"""What of a node says how it is reached; the rest is as its run was launched."""
_COMPARED = (*_REACH, "gpus", "procs", "python", "address", "state")


def reached(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the run's cluster, its nodes reached as the inventory in force has it.

    Raises:
        InventoryError: the file of `-i` has problems.
    """
    now = None if _is_as_launched(args, record) else in_force(args, record)
    if now is None:
        return record.cluster
    _report(args, record, now, _REACH)
    nodes = (_reached(node, now.node(node.name)) for node in record.cluster.nodes)
    return record.cluster.with_nodes(tuple(nodes))


def to_resume(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the run's nodes to launch on again, as the inventory in force describes them.

    Its job is the inventory's if there is one of the cluster, also if that lacks one of the nodes.

    Raises:
        InventoryError: the file of `-i` has problems.
        UsageError: the file of `-i` lacks a node of the run.
    """
    names = ",".join(node.name for node in record.cluster.nodes)
    if args.inventory:
        return select(load_all(args), names)
    now = _of_cluster(args, record)
    if now is None:
        return record.cluster
    if _lacks(args, record, now):
        return replace(record.cluster, job=now.job)
    _report(args, record, now, _COMPARED)
    return select(now, names)


def in_force(args: argparse.Namespace, record: RunRecord) -> Cluster | None:
    """Return the inventory in force if it is one of this run; None: the record counts.

    Raises:
        InventoryError: the file of `-i` has problems.
    """
    now = _of_cluster(args, record)
    return None if now is None or _lacks(args, record, now) else now


def _is_as_launched(args: argparse.Namespace, record: RunRecord) -> bool:
    """Tell whether the inventory in force says what the record does, without parsing it.

    That takes longer than all else that `logs` does before it connects.
    """
    path, nodes = inventory_path(args), record.cluster.nodes
    if not record.cluster.fingerprint or not path.is_file():
        return False
    if fingerprint(path) != record.cluster.fingerprint:
        return False
    # This machine may have other addresses by now, or be another one with the same home.
    own = own_addresses() if any(normal_address(node.host) for node in nodes) else frozenset()
    return all(is_here(node.host, own) == node.local for node in nodes)


def _of_cluster(args: argparse.Namespace, record: RunRecord) -> Cluster | None:
    """Return the inventory in force if it is of the run's cluster, whatever nodes it has."""
    path = inventory_path(args)
    if not args.inventory and not os.environ.get(VARIABLE) and not path.exists():
        return None
    try:
        now = load_all(args)
    except InventoryError as error:
        if args.inventory:
            raise
        logger.warning(
            "%s\n%s has problems: using the nodes and the job as %s was launched",
            error,
            path,
            record.run,
        )
        return None
    if now.name == record.cluster.name:
        return now
    if args.inventory:
        _ignore(path, record, f"it is of cluster {now.name}")
    return None


def _lacks(args: argparse.Namespace, record: RunRecord, now: Cluster) -> bool:
    """Tell whether the inventory lacks nodes of the run, and warn of it."""
    names = {node.name for node in now.nodes}
    missing = [node.name for node in record.cluster.nodes if node.name not in names]
    if missing:
        _ignore(inventory_path(args), record, f"it lacks {', '.join(missing)}")
    return bool(missing)


def _ignore(path: Path, record: RunRecord, why: str) -> None:
    logger.warning("%s: %s; using the nodes as %s was launched", path, why, record.run)


def _reached(node: Node, now: Node) -> Node:
    return replace(node, host=now.host, ssh=now.ssh, local=now.local)


def _report(
    args: argparse.Namespace, record: RunRecord, now: Cluster, compared: tuple[str, ...]
) -> None:
    """Warn of what the inventory has changed since the launch; the inventory counts."""
    for node in record.cluster.nodes:
        other = now.node(node.name)
        changed = [name for name in compared if getattr(node, name) != getattr(other, name)]
        if changed:
            logger.warning(
                "%s: %s of %s changed since %s was launched; using the inventory's",
                inventory_path(args),
                ", ".join(changed),
                node.name,
                record.run,
            )
