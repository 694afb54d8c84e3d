"""Submits a launch or a resume as a Slurm batch job, and follows it."""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clusterctl.cli.shared.batch import stop_batch
from clusterctl.cli.shared.following import EXIT_STOPPED_FOLLOWING, LEAVE, STAY, STOP, ask, leave
from clusterctl.cli.shared.hint_commands import with_flag, without_flag
from clusterctl.cli.shared.options import inventory_path, load_all
from clusterctl.cli.shared.signals import Terminated
from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.report.console import Screen
from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.follow import Printed, follow
from clusterctl.verbs.batch.job import BatchJob, BatchJobs
from clusterctl.verbs.batch.submit import Submission, plan_submission, sharing, submit
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.launch.validate_job import require_variables
from clusterctl.verbs.runs.records import Records
from clusterctl.wire import SCHEMA


def submits(args: argparse.Namespace, cluster: Cluster) -> bool:
    """Tell whether a launch or a resume is for a batch job that is to be submitted."""
    return cluster.by_slurm and not cluster.nodes and not args.run_id


def submit_and_follow(
    args: argparse.Namespace,
    cluster: Cluster,
    overrides: Options,
    validate: Callable[[Cluster], object],
) -> int:
    """Submit this command line as a batch job, and follow it; exit codes as `launch`.

    Args:
        args: the arguments of the launch or resume.
        cluster: without nodes.
        overrides: what is set on the command line.
        validate: refuses, on the nodes that it gets, what the job itself would refuse hours later.
    """
    if args.wait:
        raise UsageError(
            "--wait: expected none with the launcher slurm, whose queue waits", hint="leave it out"
        )
    cluster = effective(cluster, overrides)
    require_variables(cluster)
    records = Records()
    jobs = BatchJobs(records)
    submission = plan_submission(
        cluster, _words(args), records, nodes=_count(args), exclude=args.exclude
    )
    planned = effective(load_all(args, hosts=_stand_ins(submission)), overrides)
    validate(planned)
    if args.dry_run:
        call = list(submission.argv)
        print(json.dumps({"schema": SCHEMA, "sbatch": call}) if args.json else shlex.join(call))
        return 0
    command = cluster.job.command
    for run in () if args.no_sync else sharing(planned, records, jobs, Path.cwd()):
        text = f"{run} is live: this job will change files in its workdir"
        apart = with_flag(args.words, "--workdir", [f"{planned.master.workdir}-2"])
        hint = f"to keep them apart: {shlex.join(('clusterctl', *apart))}"
        Screen().say(Notice(text=text, hint=hint, level="warning"))
    inventory = inventory_path(args).read_bytes()
    batch = submit(cluster, submission, jobs, inventory, command=command, name=args.name)
    if args.detach:
        document = {"schema": SCHEMA, "run": batch.run, "slurm_job": batch.job}
        print(json.dumps(document) if args.json else batch.run)
        return 0
    Screen().say(Notice(text=f"{batch.run}: submitted as Slurm job {batch.job}"))
    return follow_batch(batch)


def follow_batch(batch: BatchJob, *, asks: bool = True) -> int:
    """Show what the job prints until it has ended; Ctrl-C asks what is to become of it.

    Raises:
        KeyboardInterrupt: Ctrl-C, if it must not ask.
        ClusterError: Slurm ended the job.
    """
    screen, jobs = Screen(), BatchJobs(Records())
    while True:
        try:
            end = follow(batch, jobs, emit=partial(_show, screen))
        except KeyboardInterrupt as interrupt:
            if not asks:
                raise
            wish = LEAVE if isinstance(interrupt, Terminated) else ask()
        else:
            if end.message:
                raise LaunchRefused(end.message, hint=f"clusterctl status {batch.run}", by="slurm")
            return end.exit_code
        if wish == STOP:
            stop_batch(batch, slurm.ask(batch.job), screen)
        elif wish == LEAVE:
            leave(batch.run)
        if wish != STAY:
            return EXIT_STOPPED_FOLLOWING


def _show(screen: Screen, event: Event) -> None:
    if isinstance(event, Printed):
        stream = sys.stdout if event.stream == "out" else sys.stderr
        stream.write(event.data.decode(errors="replace"))
        stream.flush()
    elif isinstance(event, Notice):
        screen.say(event)


def _stand_ins(submission: Submission) -> list[str]:
    """Return a name for each node that Slurm is asked for, at least; one if that is not known."""
    asked = re.match(r"(\d{1,4})(?:\D|$)", submission.nodes)
    return [f"slurm{number}" for number in range(max(1, int(asked[1])) if asked else 1)]


def _words(args: argparse.Namespace) -> Sequence[str]:
    """Return the command line as typed, the verb first; options before it follow it."""
    # The job gets no such node, and would miss it.
    words = without_flag(list(args.words), "--exclude")
    at = words.index(args.verb)
    return [args.verb, *words[:at], *words[at + 1 :]]


def _count(args: argparse.Namespace) -> int | None:
    """Return the number of `--nodes`."""
    if args.nodes and not args.nodes.isdigit():
        raise UsageError(
            "--nodes: expected no names of nodes outside of an allocation: Slurm chooses them",
            hint=f"job: {{slurm: {{nodelist: {args.nodes}}}}} in the inventory",
        )
    return int(args.nodes) if args.nodes else None
