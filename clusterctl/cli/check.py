"""`clusterctl check`: find over SSH what would break the run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clusterctl.cli.inventory_option import add_selection, load_selected
from clusterctl.cli.workdir_option import add_workdir, with_workdir
from clusterctl.inventory.cluster import Cluster
from clusterctl.report.check import check_document, print_check, print_explanation
from clusterctl.report.console import Screen
from clusterctl.report.page import form_of, write_page
from clusterctl.verbs.check import CheckOptions, CheckResult, check, find, judge
from clusterctl.verbs.factsfile import load_facts, save_facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_selection(parser)
    add_workdir(parser)
    for flag, text in (("--only", "only these checks or areas"), ("--skip", "all but these")):
        help_text = f"{text}, as storage,network.pairs"
        parser.add_argument(flag, type=_ids, default=(), metavar="IDS", help=help_text)
    parser.add_argument(
        "--deep", action="store_true", help="let the job's torch sum across the nodes too"
    )
    parser.add_argument("--strict", action="store_true", help="a warning counts as a failure")
    parser.add_argument(
        "--accept-new", action="store_true", help="record the keys of hosts not known yet"
    )
    parser.add_argument("--facts", type=Path, metavar="FILE", help="judge saved facts instead")
    parser.add_argument("--save-facts", type=Path, metavar="FILE", help="save what was found")
    parser.add_argument("--explain", metavar="ID", help="say what a check is for, and end")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write .html or .md too")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(args: argparse.Namespace) -> int:
    """Check, print, and return 0, 1 (failed) or 3 (unknown)."""
    screen = Screen()
    if args.explain:
        print_explanation(screen.out, find(args.explain))
        return 0
    if args.report is not None:
        form_of(args.report)  # a name that will not do is said before anything is looked at
    cluster = with_workdir(load_selected(args), args)
    options = CheckOptions(only=args.only, skip=args.skip, strict=args.strict, deep=args.deep)
    if args.facts is not None:
        result = judge(cluster, load_facts(args.facts), options)
    else:
        result = _check(cluster, options, screen, accept_new=args.accept_new)
    if args.json:
        print(json.dumps(check_document(result), indent=2))
    else:
        print_check(screen.out, result)
    # A file that cannot be written does not cost the verdict.
    if args.save_facts is not None:
        save_facts(args.save_facts, result.facts)
    if args.report is not None:
        write_page(args.report, result)
    return result.exit_code


def _check(
    cluster: Cluster, options: CheckOptions, screen: Screen, *, accept_new: bool
) -> CheckResult:
    from clusterctl.transport.pool import Pool  # noqa: PLC0415  (paramiko loads slowly)

    with Pool(cluster, accept_new=accept_new) as pool:
        return screen.watch(check(cluster, pool, options))


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
