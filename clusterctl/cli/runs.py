"""`clusterctl runs`: list the runs of a cluster, or delete what is kept of old ones."""

from __future__ import annotations

import argparse
import json

from clusterctl.api.session import Session
from clusterctl.cli.batch import list_batches
from clusterctl.cli.options import add_fanout, add_inventory, whole
from clusterctl.cli.run_option import EXIT_SILENT, known_cluster
from clusterctl.errors import UsageError
from clusterctl.report.console import Screen
from clusterctl.report.runs import show_pruned, show_runs
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.prune import KEPT
from clusterctl.verbs.runs.records import Records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_inventory(parser)
    add_fanout(parser)
    parser.add_argument(
        "--discover",
        action="store_true",
        help="rebuild this machine's records from what the nodes know",
    )
    parser.add_argument(
        "--prune",
        type=whole(0),
        nargs="?",
        const=KEPT,
        metavar="N",
        help=f"delete logs and records of all but the newest N ended runs (default: {KEPT})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """List or prune; 3 where a node did not answer."""
    if args.prune is not None and args.discover:
        raise UsageError(
            "expected either --discover or --prune, found both",
            hint="clusterctl runs --discover",
        )
    screen = Screen()
    cluster = known_cluster(args, Records())
    listed = list_batches(cluster) if args.prune is None else None
    if listed is None:
        with Session(cluster, fanout=args.fanout) as session:
            if args.prune is not None:
                return _prune(args, session, screen)
            listed = session.runs(discover=args.discover)
    if args.json:
        print(json.dumps(listed.document(), indent=1))
    else:
        show_runs(screen, listed)
    verified = {one.run for one in listed.runs if one.verified} if listed.rebuilt else set()
    for name in listed.rebuilt:
        proof = "" if name in verified else ", unverified: this machine did not launch it"
        screen.say(Notice(text=f"{name}: record rebuilt from the nodes{proof}"))
    screen.show_errors(listed.errors)
    return EXIT_SILENT if listed.errors else 0


def _prune(args: argparse.Namespace, session: Session, screen: Screen) -> int:
    pruned = session.prune(keep=args.prune)
    if args.json:
        print(json.dumps(pruned.document(), indent=1))
    else:
        show_pruned(screen, pruned)
    screen.show_errors(pruned.errors)
    return EXIT_SILENT if pruned.errors else 0
