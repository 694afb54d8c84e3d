"""`clusterctl pull`: bring results of the nodes to this machine."""

import argparse
import json
from functools import partial

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.hint_commands import complete_hint
from clusterctl.cli.shared.options import add_inventory, add_json, add_login
from clusterctl.report.console import Screen
from clusterctl.report.copies import show_pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file or folder on the nodes; a relative one starts at workdir",
    )
    add_inventory(parser)
    parser.add_argument(
        "--from",
        dest="source",
        metavar="NODE",
        help="the node to ask (default: all; what several have alike is brought once)",
    )
    parser.add_argument(
        "--to", metavar="DIR", help="the folder here (default: pulled, which sync leaves alone)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files here that have other contents"
    )
    add_login(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Pull; 0, 1 (a path is not here) or 3 (a node did not answer)."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        result = session.pull(
            *args.paths,
            source=args.source,
            to=args.to,
            overwrite=args.overwrite,
            on_event=progress.show,
        )
    if args.json:
        print(json.dumps(result.document()))
    else:
        show_pull(screen.err, result, partial(complete_hint, words=args.words))
    return result.exit_code
