"""`clusterctl exec`: run a command on every node."""

import argparse
import json
import shlex

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_json, add_login, add_selection, positive_seconds
from clusterctl.errors import UsageError
from clusterctl.report.console import Screen
from clusterctl.report.exec import LinePrinter, show_ends, show_outputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options; the command follows `--`."""
    parser.usage = "%(prog)s [options] -- COMMAND [ARG ...]"
    add_selection(parser)
    parser.add_argument(
        "--cwd", metavar="DIR", help="folder on the nodes to run it in (default: the home)"
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        metavar="S",
        help="end the command after so many seconds (default: never)",
    )
    parser.add_argument(
        "--stream", action="store_true", help="print lines as they come, [NODE] in front"
    )
    add_login(parser)
    add_json(parser)
    parser.add_argument("--sudo", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run it; 0 if it ended with 0 everywhere, 1 if not, 3 if a node did not answer."""
    if args.sudo:
        raise UsageError(
            "--sudo: clusterctl passes no password on",
            hint="set `user: root` for the nodes, or: clusterctl exec -- sudo -n "
            + shlex.join(args.command or ["id"]),
        )
    if args.stream and args.json:
        raise UsageError(
            "expected either --stream or --json, found both", hint="clusterctl exec --help"
        )
    screen, lines = Screen(), LinePrinter()
    with connected(args, screen) as (session, progress):
        result = session.exec(
            args.command,
            nodes=args.nodes,
            exclude=args.exclude,
            cwd=args.cwd,
            timeout=args.timeout,
            on_event=lines.show if args.stream else progress.show,
        )
    lines.close()
    if args.json:
        print(json.dumps(result.document(), indent=1))
        return result.exit_code
    if not args.stream:
        show_outputs(screen, result)
    show_ends(screen, result, cwd=args.cwd)
    return result.exit_code
