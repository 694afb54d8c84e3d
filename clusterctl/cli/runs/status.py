"""`clusterctl status`: what a run is doing, or how it ended and why."""

import argparse
import json
import time
from collections.abc import Callable

from clusterctl.cli.shared.batch import batch_of, view_of_batch
from clusterctl.cli.shared.options import add_json
from clusterctl.cli.shared.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.errors import UsageError
from clusterctl.report.console import Screen
from clusterctl.report.prometheus import prometheus
from clusterctl.report.status import show_status
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.run_state import LIVE
from clusterctl.verbs.runs.run_status import RunStatus

WATCH_SECONDS = 2.0
LEAST_SECONDS, MOST_SECONDS = 0.5, 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    add_json(parser)
    parser.add_argument(
        "--prometheus",
        action="store_true",
        help="print it as text for the textfile collector of node_exporter, all live runs at once",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"print it again every so many seconds ({WATCH_SECONDS:g}) until the run is over;"
        " with --json, one document a line",
    )


def _seconds(text: str) -> float:
    """Read SECONDS; raise argparse.ArgumentTypeError if it is no time to wait."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        wanted = f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds"
        raise argparse.ArgumentTypeError(f"expected {wanted}, found {text!r}")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Print it, or all live ones; 3 if a node of a run did not answer, or none knows of it."""
    if args.prometheus and (args.json or args.watch):
        other = "--json" if args.json else "--watch"
        raise UsageError(
            f"expected --prometheus or {other}, found both", hint="clusterctl status --prometheus"
        )
    screen = Screen()
    try:
        while found := batch_of(args):
            args.run = found[0].run  # a newer one may be submitted meanwhile
            if not _show_once(args, screen, view_of_batch(*found)):
                return 0
        return _show(args, screen)
    except SeveralLive as several:
        if args.json or args.watch:
            raise  # of one run
        runs = several.runs
    each_run = [argparse.Namespace(**{**vars(args), "run": run}) for run in runs]
    if args.prometheus:
        print(prometheus([_ask(each) for each in each_run]), end="")
        return 0
    return max(run(each) for each in each_run)


def _ask(args: argparse.Namespace) -> RunStatus:
    if found := batch_of(args):
        return view_of_batch(*found)
    with open_run(args) as run:
        return run.status()


def _show(args: argparse.Namespace, screen: Screen) -> int:
    with open_run(args) as run:

        def ask() -> RunStatus:
            if args.watch is not None:
                return run.status()  # a progress line would flicker
            with screen.progress() as progress:
                return run.status(on_event=progress.show)

        view = watch(args, screen, ask)
    told = not view.silent and (view.known or view.remembered)
    # For Prometheus, a metric tells which nodes do not answer.
    return 0 if told or args.prometheus else EXIT_SILENT


def watch(args: argparse.Namespace, screen: Screen, ask: Callable[[], RunStatus]) -> RunStatus:
    """Print a run's status; with `--watch` again and again, until it is over."""
    while True:
        view = ask()
        if not _show_once(args, screen, view):
            return view


def _show_once(args: argparse.Namespace, screen: Screen, view: RunStatus) -> bool:
    """Print a run's status; with `--watch`, wait unless the run is over, and return whether not."""
    if args.prometheus:
        print(prometheus([view]), end="")
    elif args.json:
        print(json.dumps(view.document(), indent=None if args.watch else 1), flush=True)
    else:
        show_status(screen, view, again=args.watch is not None)
    if args.watch is None or not (view.live or view.state in {*LIVE, "queued", "unreachable"}):
        return False
    time.sleep(args.watch)
    return True
