"""`clusterctl join`: let nodes join a run while it runs, or waits for them."""

import argparse
import json

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_inventory, add_json, add_login
from clusterctl.cli.shared.run_option import WHICH_TO_CHANGE, add_word, name_each_run
from clusterctl.report.console import Screen
from clusterctl.report.runs import show_join
from clusterctl.verbs.runs.find_run import SeveralLive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_word(parser, WHICH_TO_CHANGE, omitted="the only live one")
    add_inventory(parser)
    parser.add_argument(
        "--nodes",
        required=True,
        metavar="SPEC",
        help="nodes of the inventory that join: names and ranges such as gpu[02-04,07]",
    )
    add_login(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="join in spite of checks that failed, and with other code",
    )
    add_json(parser)
    parser.epilog = "The run must restart itself (--restarts) or be elastic (--nnodes=MIN:MAX)"


def run(args: argparse.Namespace) -> int:
    """Let them join; 0 all joined, 1 a node was refused, 3 a node did not answer."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        try:
            result = session.join(
                args.run, nodes=args.nodes, force=args.force, on_event=progress.show
            )
        except SeveralLive as several:
            name_each_run(args, several)
            raise
    if args.json:
        print(json.dumps(result.document()))
    else:
        show_join(screen, result)
    return result.exit_code
