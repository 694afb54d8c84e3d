"""The argument that says which run, and the way to its nodes; shared by the verbs about runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clusterctl.cli.inventory_option import VARIABLE, add_inventory, inventory_path, load_all
from clusterctl.cli.recorded import reached
from clusterctl.errors import CouldNotTell
from clusterctl.inventory.cluster import Cluster
from clusterctl.transport.pool import Pool
from clusterctl.verbs import locate
from clusterctl.verbs.records import Records, RunRecord

EXIT_SILENT = CouldNotTell.exit_code
"""What a verb ends with that is not sure, since a node did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run, and the pool that reaches its nodes."""

    run: str
    cluster: Cluster
    """The nodes that ran it, in launch order, and its job."""
    pool: Pool
    record: RunRecord | None
    """What this machine remembers of it."""


def run_name(text: str) -> str:
    """Read RUN: an empty word is a variable that was not set, and means no run.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("wanted a run's id or name, found an empty word")
    return text


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add `RUN` and `-i FILE`."""
    parser.add_argument(
        "run",
        nargs="?",
        type=run_name,
        metavar="RUN",
        help="the run; omitted: the only live one, else the newest",
    )
    add_inventory(parser)


@contextmanager
def open_run(args: argparse.Namespace) -> Iterator[OpenRun]:
    """Find the run that is meant and open the way to its nodes.

    Raises:
        ClusterError: there is none, or several are meant.
    """
    records = Records()
    record = records.find(args.run) if args.run else None
    if record is not None:
        cluster = reached(args, record)
        with Pool(cluster) as pool:
            yield OpenRun(run=record.run, cluster=cluster, pool=pool, record=record)
        return
    with Pool(load_all(args) if args.run else known_cluster(args, records)) as pool:
        found = locate.discover(pool)
        if args.run:
            run = locate.named(found, args.run)
        else:
            run = locate.choose(found, records.all(pool.cluster.name), verb=args.verb)
        record = records.read(pool.cluster.name, run)
        if record is not None:
            cluster = reached(args, record)
        else:
            cluster = locate.nodes_of(found, run, pool.cluster)
        if {node.name for node in cluster.nodes} <= {node.name for node in pool.cluster.nodes}:
            yield OpenRun(run=run, cluster=cluster, pool=pool, record=record)
            return
    with Pool(cluster) as wider:
        yield OpenRun(run=run, cluster=cluster, pool=wider, record=record)


def known_cluster(args: argparse.Namespace, records: Records) -> Cluster:
    """Return the inventory's cluster; in a folder without one, that of the newest run.

    Raises:
        InventoryError: the inventory has problems, or there is none and no run either.
    """
    asked = args.inventory or os.environ.get(VARIABLE)
    if not asked and not inventory_path(args).exists():
        newest = next(iter(records.all()), None)
        if newest is not None:
            return newest.cluster
    return load_all(args)
