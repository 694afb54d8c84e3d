"""`clusterctl push`: bring models and data to every node."""

import argparse
import json

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_json, add_login, add_selection, complete_files
from clusterctl.report.console import Screen
from clusterctl.report.copies import show_push


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    complete_files(
        parser.add_argument(
            "paths",
            nargs="*",
            metavar="PATH",
            help="a file or folder, at the same place on every node; or LOCAL:REMOTE"
            " (default: the inventory's `needs`)",
        )
    )
    add_selection(parser)
    parser.add_argument(
        "--from",
        dest="source",
        metavar="NODE",
        help="the node that has it (default: this machine if it has, else a node that has all)",
    )
    parser.add_argument(
        "--to",
        metavar="DIR",
        help="the folder on the nodes that gets it; a relative one is in workdir",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent")
    add_login(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Push; 0, 1 (a node does not have a path) or 3 (a node did not answer)."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        result = session.push(
            *args.paths,
            nodes=args.nodes,
            exclude=args.exclude,
            source=args.source,
            to=args.to,
            dry_run=args.dry_run,
            on_event=progress.show,
        )
    if args.json:
        print(json.dumps(result.document()))
    else:
        show_push(screen.err, result)
    return result.exit_code
