"""`clusterctl launch`: check, sync and start the job on every node, and follow it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.cli.following import follow_run, make_display, show_detached
from clusterctl.cli.inventory_option import load_selected
from clusterctl.cli.launch_options import add_options, launch_options
from clusterctl.errors import ClusterError, Interrupted, LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.report.console import Screen
from clusterctl.report.launch import LaunchDisplay
from clusterctl.report.plan import show_plan
from clusterctl.transport.pool import Pool
from clusterctl.verbs.launch import LaunchOptions, launch, prepare
from clusterctl.verbs.records import Records
from clusterctl.wire import plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_options(parser)
    parser.epilog = "A command after -- is launched instead of the job's: -- train.py --lr 1e-4"


def run(args: argparse.Namespace) -> int:
    """Launch; the job's exit code, 125 where clusterctl ended it, 130 where it was left."""
    options = launch_options(args)
    cluster = load_selected(args)
    display = make_display(as_json=args.json)
    with Pool(cluster, accept_new=args.accept_new) as pool, refusals(display):
        return launch_or_show(args, cluster, pool, options, display)


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


def launch_or_show(
    args: argparse.Namespace,
    cluster: Cluster,
    pool: Pool,
    options: LaunchOptions,
    display: LaunchDisplay,
) -> int:
    """Do what `launch` and `resume` do once it is known what: start it, or only show the plan."""
    if args.dry_run:
        return _dry_run(cluster, pool, options, display, as_json=args.json)
    records = Records()
    launched = display.watch(launch(cluster, pool, records, options))
    if args.detach:
        show_detached(launched.plan.run, as_json=args.json)
        return 0
    return follow_run(launched, pool, records, display)


def _dry_run(
    cluster: Cluster, pool: Pool, options: LaunchOptions, display: LaunchDisplay, *, as_json: bool
) -> int:
    _, plan, verdict = display.watch(prepare(cluster, pool, options))
    if as_json:
        print(json.dumps({"kind": "plan", **plain(plan)}))
    else:
        show_plan(Screen(), plan)
    return LaunchRefused.exit_code if verdict.blocking and not options.forces else 0
