"""`clusterctl resume`: launch a run's job again from a checkpoint that is proven complete."""

from __future__ import annotations

import argparse
from dataclasses import replace

from clusterctl.cli.following import make_display
from clusterctl.cli.inventory_option import inventory_path, load_selected
from clusterctl.cli.launch import launch_or_show, refusals
from clusterctl.cli.launch_options import add_options, launch_options
from clusterctl.cli.recorded import to_resume
from clusterctl.cli.recorded_job import report_job
from clusterctl.cli.run_option import known_cluster, run_name
from clusterctl.errors import ClusterError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.effective import effective
from clusterctl.transport.pool import Pool
from clusterctl.verbs.history import history_of
from clusterctl.verbs.launchable import require_secrets
from clusterctl.verbs.records import Records, RunRecord
from clusterctl.verbs.resume import ResumeOptions, resume


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run",
        nargs="?",
        type=run_name,
        metavar="RUN",
        help="the run to go on from; omitted: the newest",
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="PATH|latest", help="what to go on from"
    )
    add_options(parser)
    parser.epilog = (
        "Instead of the job's own, a command may come after --, with {checkpoint} in it."
    )


def run(args: argparse.Namespace) -> int:
    """Launch again; exit codes as `launch`."""
    launch = launch_options(args)
    options = ResumeOptions(checkpoint=args.checkpoint, launch=launch)
    display = make_display(as_json=args.json)
    with refusals(display):
        records = Records()
        before = _before(args, records)
        options = replace(options, history=history_of(before, records.find))
        nodes = _cluster(args, before)
        if nodes.name == before.cluster.name and nodes.job != before.cluster.job:
            report_job(inventory_path(args), before, nodes.job, launch.plan, records.find)
        with Pool(nodes, accept_new=args.accept_new) as pool:
            if not args.dry_run:
                cluster = replace(pool.cluster, job=before.cluster.job)
                require_secrets(effective(cluster, launch.plan))
            steps = resume(before, pool.cluster, pool, options)
            cluster, wanted = display.watch(steps)
            return launch_or_show(args, cluster, pool, wanted, display)


def _before(args: argparse.Namespace, records: Records) -> RunRecord:
    """Return the record of the run to go on from: the one named, else the newest.

    Raises:
        ClusterError: there is none on this machine.
    """
    if args.run:
        record = records.find(args.run)
        missing = f"run {args.run} has no record on this machine"
    else:
        name = known_cluster(args, records).name
        record = next(iter(records.all(name)), None)
        missing = f"no run of cluster {name} has a record on this machine"
    if record is None:
        hint = "clusterctl runs --discover rebuilds records from what the nodes know"
        raise ClusterError(missing, hint=hint)
    return record


def _cluster(args: argparse.Namespace, before: RunRecord) -> Cluster:
    """Return the nodes to launch on: the run's own, unless the command line picks others."""
    if args.nodes or args.exclude:
        return load_selected(args)
    return to_resume(args, before)
