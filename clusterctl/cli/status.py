"""`clusterctl status`: what a run is doing, or how it ended and why."""

from __future__ import annotations

import argparse
import json

from clusterctl.cli.batch import batch_of, view_of_batch
from clusterctl.cli.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.report.console import Screen
from clusterctl.report.status import show_status
from clusterctl.verbs.runs.find_run import SeveralLive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print it, or all live ones; 3 if a node of a run did not answer, or none knows of it."""
    found = batch_of(args)
    if found:
        view = view_of_batch(*found)
        if args.json:
            print(json.dumps(view.document(), indent=1))
        else:
            show_status(Screen(), view)
        return 0
    try:
        return _show(args)
    except SeveralLive as several:
        if args.json:
            raise  # one document, of one run
        runs = several.runs
    codes = [_show(argparse.Namespace(**{**vars(args), "run": run})) for run in runs]
    return max(codes)


def _show(args: argparse.Namespace) -> int:
    screen = Screen()
    with open_run(args) as run:
        with screen.progress() as progress:
            view = run.status(on_event=progress.show)
        if args.json:
            print(json.dumps(view.document(), indent=1))
        else:
            show_status(screen, view)
    return EXIT_SILENT if view.silent or not (view.known or view.remembered) else 0
