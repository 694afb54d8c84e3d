"""`clusterctl launch`: check, sync and start the job on every node, and follow it."""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from clusterctl.api.flags import launch_options
from clusterctl.api.run import Run
from clusterctl.api.session import Session
from clusterctl.cli.shared.batch import note_ending
from clusterctl.cli.shared.following import LaunchDisplay, follow_run, make_display, shown
from clusterctl.cli.shared.launch_options import add_options, launch_flags, warn_of_flags
from clusterctl.cli.shared.options import load_all
from clusterctl.cli.shared.submit import submit_and_follow, submits
from clusterctl.errors import ClusterError, Interrupted, LaunchRefused, UsageError
from clusterctl.plan.plan import Plan
from clusterctl.report.console import Screen
from clusterctl.report.launch import show_plan
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch.launch import Checked, validate
from clusterctl.wire import SCHEMA, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_options(parser)
    parser.epilog = "A command after -- replaces the job's: -- train.py --lr 1e-4"


def run(args: argparse.Namespace) -> int:
    """Launch; the job's exit code, 125 if clusterctl ended it, 130 if it was left running."""
    warn_of_flags(args.command)
    display = make_display(as_json=args.json)
    flags = launch_flags(args, display.quiet)
    cluster = load_all(args)
    if submits(args, cluster):
        with refusals(display):
            options = launch_options(args.command, flags)
            judge = partial(validate, options=options, emit=lambda _: None)
            return submit_and_follow(args, cluster, options.overrides, judge)
    session = Session(cluster, accept_new=args.accept_new, fanout=args.fanout)
    with session, refusals(display):
        plan = partial(session.plan, args.command, **flags)
        return start(args, display, plan, partial(session.launch, args.command, **flags))


def start(
    args: argparse.Namespace,
    display: LaunchDisplay,
    plan: Callable[..., Plan],
    launch: Callable[..., Run],
) -> int:
    """Show the plan of a dry run, or launch and then follow; both are called with `on_event`."""
    if args.dry_run:
        return _dry_run(args, display, plan)
    with shown(display) as show:
        run = launch(on_event=show)
    if args.detach and not args.run_id:
        with suppress(KeyboardInterrupt), shown(display) as show:  # it has been launched
            run._bring_py_spy(emit=show)  # noqa: SLF001  (not public: following does it, too)
        if run.cluster.slurm_job and os.environ.get("ENVIRONMENT") == "BATCH":  # sbatch sets it
            text = "Slurm kills the run as soon as this batch script ends"
            hint = "leave --detach out: launch then lasts as long as the run"
            display.show(Notice(text=text, hint=hint, level="warning"))
        print(json.dumps({"schema": SCHEMA, "run": run.id}) if args.json else run.id)
        return 0
    return follow_run(run, display, in_job=note_ending if args.run_id else None)


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


def _dry_run(args: argparse.Namespace, display: LaunchDisplay, plan: Callable[..., Plan]) -> int:
    """Show what would be started; 125 if a check would stop it."""
    blocked = False

    def show(event: Event) -> None:
        nonlocal blocked
        if isinstance(event, Checked):
            blocked = bool(event.verdict.blocking)
        display.show(event)

    with shown(display):
        planned = plan(on_event=show)
    if args.json:
        print(json.dumps({"kind": "plan", **plain(planned)}))
    else:
        show_plan(Screen(), planned)
    return LaunchRefused.exit_code if blocked and not args.force else 0
