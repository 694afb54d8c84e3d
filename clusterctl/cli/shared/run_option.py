"""The argument RUN, and the cluster whose nodes are asked about it.

The inventory counts if it is of the run's cluster and has all of its nodes: given by `-i`, by the
variable, or found in the current folder. Otherwise the run's record counts.
"""

import argparse
import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace

from clusterctl.api.run import Run
from clusterctl.api.session import Session
from clusterctl.cli.shared.options import add_fanout, add_inventory, inventory_path, load_all
from clusterctl.errors import ClusterError, CouldNotTell, InventoryError, UsageError
from clusterctl.inventory import load
from clusterctl.inventory.addresses import is_here, normal_address, own_addresses
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.load import DEFAULT, VARIABLE, fingerprint
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.recorded_job import lacks, report_changes, report_ignored
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_id import refuse_part

logger = logging.getLogger("clusterctl")

EXIT_SILENT = CouldNotTell.exit_code
"""What a verb ends with that is not sure, since a node did not answer."""

_SHOWN_RUNS = 4
"""Live runs of which the hint names each."""


WHICH = "the run: its id or name, or a part of either that no other run has"
"""For the help of RUN."""

WHICH_TO_CHANGE = "the run: its id or name, or the end of its id"
"""For the help of RUN of a verb that changes it."""


def run_name(text: str) -> str:
    """Read RUN, for argparse; an empty word means a variable that was not set: no run."""
    if not text:
        raise argparse.ArgumentTypeError("expected a run's id or name, found an empty word")
    return text


def add_run(parser: argparse.ArgumentParser, which: str = WHICH) -> None:
    """Add `RUN` and `-i FILE`."""
    add_word(parser, which, omitted="the only live one, else the newest")
    add_inventory(parser)
    add_fanout(parser)


def add_word(parser: argparse.ArgumentParser, which: str, *, omitted: str) -> None:
    """Add `RUN`; its help says which run is meant, and which one if it is left out."""
    text = f"{which}; omitted: {omitted}"
    parser.add_argument("run", nargs="?", type=run_name, metavar="RUN", help=text)


def open_session(args: argparse.Namespace, *, part: bool = True) -> Session:
    """Return a session with the cluster of the run that is named, else of the inventory.

    Args:
        part: as `Session.run` has it.

    Raises:
        SeveralRuns: RUN is a part of several, or a mere part.
        ClusterError: the inventory has problems, or there is none and no run either.
    """
    records = Records()
    if not args.run:
        return Session(known_cluster(args, records), fanout=args.fanout)
    record = records.find(args.run, part=part, prefer=own_cluster(args))
    cluster = load_all(args) if record is None and has_inventory(args) else None
    if record is None and (cluster is None or not cluster.nodes):
        if not part:
            refuse_part(args.run, records.with_part(args.run))
        why = f"{inventory_path(args)}, which would name nodes to ask, does not exist"
        if cluster is not None:
            why = "Slurm's nodes can be asked in their allocation only"
        raise ClusterError(
            f"run {args.run} has no record on this machine, and {why}",
            hint=f"-i {DEFAULT}" if not any(records.newest_first()) else "clusterctl runs",
        )
    if record is not None:
        args.run, cluster = record.run, to_ask(args, record)
    return Session(cluster, fanout=args.fanout)


@contextlib.contextmanager
def open_run(args: argparse.Namespace, *, part: bool = True) -> Iterator[Run]:
    """Find the run that is meant; its nodes are reached while the block runs.

    Args:
        part: as `Session.run` has it.

    Raises:
        ClusterError: there is none, or several are meant.
    """
    with open_session(args, part=part) as session:
        try:
            run = session.run(args.run, part=part)
        except SeveralLive as several:
            name_each_run(args, several)
            raise
        yield run


def name_each_run(args: argparse.Namespace, several: SeveralLive) -> None:
    """Make its hint what was typed, with each of the runs, and with `--all` if the verb has it."""
    typed = list(getattr(args, "words", (args.verb,)))
    at = typed.index(getattr(args, "action", None) or args.verb) + 1
    named = [*several.runs[:_SHOWN_RUNS], *(("--all",) if args.verb == "stop" else ())]
    lines = (shlex.join(("clusterctl", *typed[:at], each, *typed[at:])) for each in named)
    several.hint = "\n".join(lines)


def known_cluster(args: argparse.Namespace, records: Records) -> Cluster:
    """Return the inventory's cluster; in a folder without one, that of the newest run's inventory.

    Raises:
        InventoryError: the inventory has problems, or there is none and no run either.
    """
    newest = None if has_inventory(args) else next(records.newest_first(), None)
    if newest is not None:
        # The run itself may have had a part of the nodes.
        file = newest.inventory
        with contextlib.suppress(InventoryError):
            cluster = load(file) if file else newest.cluster
            if cluster.name == newest.cluster.name and cluster.nodes:
                return cluster
        return newest.cluster
    cluster = load_all(args)
    # Outside of its allocations, Slurm's nodes are known by the runs on them.
    newest = None if cluster.nodes else next(records.newest_first(cluster.name), None)
    return cluster if newest is None else newest.cluster


def own_cluster(args: argparse.Namespace) -> str:
    """Return the name of the inventory's cluster, whose runs a word means first; empty: none."""
    if has_inventory(args):
        with contextlib.suppress(InventoryError):  # a run that is recorded needs no inventory
            return load_all(args).name
    return ""


def has_inventory(args: argparse.Namespace) -> bool:
    """Tell whether an inventory is named, or found in the current folder."""
    named = args.inventory or os.environ.get(VARIABLE)
    return bool(named) or inventory_path(args).exists()


def to_ask(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the cluster whose nodes are asked about the run, by `-i` or the record."""
    if record.cluster.slurm_job or _is_as_launched(args, record):
        return record.cluster
    return _in_force(args, record) or record.cluster


def to_resume(args: argparse.Namespace, record: RunRecord) -> Cluster:
    """Return the cluster of the nodes to launch on again.

    Its job is the inventory's if there is one of the cluster, also if that lacks one of the nodes.

    Raises:
        InventoryError: the file of `-i` has problems.
    """
    if args.inventory or (args.nodes and has_inventory(args)):
        return load_all(args)
    now = _in_force(args, record)
    if now is None and record.cluster.slurm_job:
        raise UsageError(
            f"{record.run} ran on nodes that Slurm chose: expected its inventory, found none here",
            hint=f"cd {shlex.quote(record.source)}, then the same command",
        )
    if now is None:
        return record.cluster
    if now.by_slurm:
        return now
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
    if not has_inventory(args):
        return None
    try:
        now = load_all(args)
    except InventoryError as error:
        if args.inventory:
            raise
        logger.warning(
            "%s\n%s has problems: using the nodes and the job as %s was launched",
            error,
            inventory_path(args),
            record.run,
        )
        return None
    if now.name == record.cluster.name:
        return now
    if args.inventory:
        report_ignored(record, now, f"it is of cluster {now.name}")
    return None
