"""`clusterctl setup`: make the same Python environment on every node."""

import argparse
import json
from pathlib import Path

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_json, add_login, add_selection, complete_files
from clusterctl.report.console import Screen
from clusterctl.report.setup import Doings, show_setup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_selection(parser)
    action = parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="what to install (default: uv.lock, requirements.txt or pyproject.toml here)",
    )
    complete_files(action)
    parser.add_argument(
        "--base",
        metavar="PYTHON",
        help="the nodes' interpreter to make it with (default: their python3)",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="download the wheels here and send them: for nodes without a network",
    )
    add_login(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Make it; 0 if all nodes have it alike, 1 if not, 3 if a node did not answer."""
    screen = Screen()
    with connected(args, screen) as (session, progress):
        result = session.setup(
            requirements=args.requirements,
            nodes=args.nodes,
            exclude=args.exclude,
            base=args.base,
            offline=args.offline,
            on_event=Doings(progress).show,
        )
    if args.json:
        print(json.dumps(result.document(), indent=1))
    else:
        show_setup(screen, result)
    return result.exit_code
