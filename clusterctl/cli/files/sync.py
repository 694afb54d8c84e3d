"""`clusterctl sync`: mirror the current folder into every node's workdir."""

import argparse
import json

from clusterctl.cli.shared.agree import asks_to_copy
from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import (
    add_json,
    add_login,
    add_selection,
    add_workdir,
    given_workdir,
)
from clusterctl.report.console import Screen
from clusterctl.report.copies import show_sync

YES_HELP = "copy more than 1 GB without a question"
DELETE_HELP = "allow the sync to delete most of what it placed, or files that the command needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_selection(parser)
    add_workdir(parser)
    add_login(parser)
    parser.add_argument("--delete", action="store_true", help=DELETE_HELP)
    parser.add_argument("-y", "--yes", action="store_true", help=YES_HELP)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Sync, and say what each node has; 0, 1 (not brought to it) or 3 (did not answer)."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        result = session.sync(
            nodes=args.nodes,
            exclude=args.exclude,
            workdir=given_workdir(args),
            delete=args.delete,
            yes=args.yes or asks_to_copy(progress.quiet),
            on_event=progress.show,
        )
    if args.json:
        print(json.dumps(result.document()))
    else:
        show_sync(screen.err, result)
    return result.exit_code
