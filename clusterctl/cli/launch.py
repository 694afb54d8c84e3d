"""`clusterctl launch`: check, sync and start the job on every node, and follow it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from clusterctl.api.run import Run
from clusterctl.api.session import Session
from clusterctl.cli.following import LaunchDisplay, follow_run, make_display, shown
from clusterctl.cli.launch_options import add_options, launch_flags
from clusterctl.cli.options import load_all
from clusterctl.errors import ClusterError, Interrupted, LaunchRefused, UsageError
from clusterctl.plan.plan import Plan
from clusterctl.report.console import Screen
from clusterctl.report.plan import show_plan
from clusterctl.verbs.events import Event
from clusterctl.verbs.launch.launch import Checked
from clusterctl.wire import SCHEMA, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_options(parser)
    parser.epilog = "A command after -- replaces the job's: -- train.py --lr 1e-4"


def run(args: argparse.Namespace) -> int:
    """Launch; the job's exit code, 125 where clusterctl ended it, 130 where it was left."""
    flags = launch_flags(args)
    session = Session(load_all(args), accept_new=args.accept_new)
    display = make_display(as_json=args.json)
    with session, refusals(display):
        if args.dry_run:
            return dry_run(args, display, partial(session.plan, args.command, **flags))
        with shown(display) as show:
            started = session.launch(args.command, on_event=show, **flags)
        return follow_or_detach(args, started, display)


@contextmanager
def refusals(display: LaunchDisplay) -> Iterator[None]:
    """Show that nothing runs, and why, when the block ends so.

    Raises:
        LaunchRefused: for what elsewhere ends with 1 or 3, which a job could have ended with too.
    """
    try:
        yield
    except (UsageError, LaunchRefused, Interrupted) as error:
        display.refused(error)
        raise
    except ClusterError as error:
        refused = LaunchRefused(str(error), hint=error.hint, by="controller")
        display.refused(refused)
        raise refused from error


def follow_or_detach(args: argparse.Namespace, run: Run, display: LaunchDisplay) -> int:
    """Do what comes after a start: name the run and leave it, or follow it."""
    if args.detach:
        print(json.dumps({"schema": SCHEMA, "run": run.id}) if args.json else run.id)
        return 0
    return follow_run(run, display)


def dry_run(args: argparse.Namespace, display: LaunchDisplay, make: Callable[..., Plan]) -> int:
    """Show what `make` would start, given `on_event`; 125 if a check would stop it."""
    blocked = False

    def show(event: Event) -> None:
        nonlocal blocked
        if isinstance(event, Checked):
            blocked = bool(event.verdict.blocking)
        display.show(event)

    with shown(display):
        plan = make(on_event=show)
    if args.json:
        print(json.dumps({"kind": "plan", **plain(plan)}))
    else:
        show_plan(Screen(), plan)
    return LaunchRefused.exit_code if blocked and not args.force else 0
