"""Which inventory counts for a recorded run: the one in force, or what the record keeps.

The inventory counts if it is of the run's cluster and has all of its nodes: given by `-i`, by the
variable, or found in the current folder. Otherwise the record counts.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import replace

from clusterctl.cli.options import inventory_path, load_all
from clusterctl.errors import InventoryError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.load import VARIABLE, fingerprint
from clusterctl.inventory.machine import is_here, normal_address, own_addresses
from clusterctl.verbs.runs.recorded_nodes import lacks, report_changes, report_ignored
from clusterctl.verbs.runs.records import RunRecord

logger = logging.getLogger("clusterctl")


def to_ask(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the cluster whose nodes are asked about the run.

    Raises:
        InventoryError: the file of `-i` has problems.
    """
    if _is_as_launched(args, record):
        return record.cluster
    return _in_force(args, record) or record.cluster


def to_resume(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the cluster of the nodes to launch on again.

    Its job is the inventory's if there is one of the cluster, also if that lacks one of the nodes.

    Raises:
        InventoryError: the file of `-i` has problems.
    """
    if args.inventory:
        return load_all(args)
    now = _in_force(args, record)
    if now is None:
        return record.cluster
    if lacks(record, now):
        return replace(record.cluster, job=now.job, file=now.file)
    report_changes(record, now)
    return now


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


def _in_force(args: argparse.Namespace, record: RunRecord) -> Cluster | None:
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
        report_ignored(record, now, f"it is of cluster {now.name}")
    return None
