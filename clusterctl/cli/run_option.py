"""The argument that says which run, and the way to its nodes; shared by the verbs about runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.api.run import Run
from clusterctl.api.session import Session
from clusterctl.cli.options import add_inventory, inventory_path, load_all
from clusterctl.cli.recorded import to_ask
from clusterctl.errors import CouldNotTell
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.load import VARIABLE
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.records import Records

EXIT_SILENT = CouldNotTell.exit_code
"""What a verb ends with that is not sure, since a node did not answer."""


def run_name(text: str) -> str:
    """Read RUN: an empty word is a variable that was not set, and means no run.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a run's id or name, found an empty word")
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


def open_session(args: argparse.Namespace) -> Session:
    """Return a session with the cluster of the run that is named, else of the inventory.

    Raises:
        ClusterError: the inventory has problems, or there is none and no run either.
    """
    records = Records()
    if not args.run:
        return Session(known_cluster(args, records))
    record = records.find(args.run)
    return Session(load_all(args) if record is None else to_ask(args, record))


@contextmanager
def open_run(args: argparse.Namespace) -> Iterator[Run]:
    """Find the run that is meant; its nodes are reached while the block runs.

    Raises:
        ClusterError: there is none, or several are meant.
    """
    with open_session(args) as session:
        try:
            run = session.run(args.run)
        except SeveralLive as several:
            several.hint = f"clusterctl {args.verb} {several.runs[0]}"
            raise
        yield run


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
