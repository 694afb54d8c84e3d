"""`clusterctl check`: find over SSH what would break the run."""

import argparse
import json
from pathlib import Path

from clusterctl.cli.shared.connected import connected
from clusterctl.cli.shared.options import add_login, add_selection, add_workdir, given_workdir
from clusterctl.cli.shared.output import readers_may_leave
from clusterctl.report.check import print_check, print_checks, print_choices, print_explanation
from clusterctl.report.console import Screen
from clusterctl.report.html.check import html_page
from clusterctl.report.html.frame import require_html, write
from clusterctl.verbs.events import Notice
from clusterctl.verbs.preflight.check import CheckOptions, find_check, select_checks
from clusterctl.verbs.preflight.facts_file import save_facts
from clusterctl.wire import SCHEMA, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_selection(parser)
    add_workdir(parser)
    for flag, text in (
        ("--only", "only these checks or areas"),
        ("--skip", "skip these checks or areas"),
    ):
        help_text = f"{text}, such as storage,network.pairs"
        parser.add_argument(flag, default=(), metavar="IDS", help=help_text)
    parser.add_argument(
        "--deep", action="store_true", help="also try GPUs and network with the job's torch"
    )
    parser.add_argument("--strict", action="store_true", help="a warning counts as a failure")
    add_login(parser)
    parser.add_argument(
        "--facts", type=Path, metavar="FILE", help="judge saved facts; connect to no node"
    )
    parser.add_argument(
        "--save-facts", type=Path, metavar="FILE", help="save the facts of the nodes"
    )
    parser.add_argument(
        "--explain-network",
        action="store_true",
        help="also show what NCCL, Gloo and TensorPipe will use on each node, and why",
    )
    parser.add_argument("--list", action="store_true", help="list the checks and exit")
    parser.add_argument("--explain", metavar="ID", help="explain a check and exit")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write a report as .html")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Check, print, and return 0, 1 (failed) or 3 (unknown)."""
    screen = Screen()
    if args.list or args.explain:
        _describe(screen, args)
        return 0
    if args.report is not None:
        require_html(args.report, "--report")
    with connected(args, screen) as (session, progress):
        result = session.check(
            nodes=args.nodes,
            exclude=args.exclude,
            workdir=given_workdir(args),
            only=args.only,
            skip=args.skip,
            deep=args.deep,
            strict=args.strict,
            facts=args.facts,
            on_event=progress.show,
        )
    with readers_may_leave():
        if args.json:
            explained = {"choices": plain(result.choices)} if args.explain_network else {}
            print(json.dumps({**result.document(), **explained}, indent=2))
        else:
            if args.explain_network:
                print_choices(screen.out, result)
            print_check(screen.out, result, verbose=args.verbose > 0, quiet=screen.quiet)
    placed = given_workdir(args) or any(node.workdir for node in session.cluster.nodes)
    if not (args.json or args.only or placed):
        text = "no workdir: launch and sync bring no code to the nodes"
        hint = "add `workdir: /home/USER/NAME` to the inventory, or type --workdir DIR"
        screen.say(Notice(text=text, hint=hint))
    # A file that cannot be written does not cost the verdict.
    if args.save_facts is not None:
        save_facts(args.save_facts, result.facts)
    if args.report is not None:
        write(args.report, html_page(result))
    return result.exit_code


def _describe(screen: Screen, args: argparse.Namespace) -> None:
    """Print what the checks are; no inventory is needed."""
    if args.explain:
        check = find_check(args.explain)
        if args.json:
            print(json.dumps({"schema": SCHEMA, **check.document()}, indent=2))
        else:
            print_explanation(screen.out, check)
        return
    checks = select_checks(CheckOptions())
    if args.json:
        listed = [check.document() for check in checks]
        print(json.dumps({"schema": SCHEMA, "checks": listed}, indent=2))
    else:
        print_checks(screen.out, checks)
