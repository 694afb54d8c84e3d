"""Runs that are Slurm batch jobs: the verbs' answers while their nodes cannot be asked."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from clusterctl.cli.shared.options import inventory_path, load_all
from clusterctl.cli.shared.run_option import name_each_run, own_cluster
from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.other_programs.allocation import allocation
from clusterctl.inventory.ranges import BadRange
from clusterctl.report.console import Screen
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.job import BatchJob, BatchJobs
from clusterctl.verbs.batch.slurm import SlurmState
from clusterctl.verbs.batch.status import (
    asks_nodes,
    batch_runs,
    batch_status,
    cancel,
    wait_until_ended,
)
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.find_run import SeveralLive
from clusterctl.verbs.runs.list_runs import RunList
from clusterctl.verbs.runs.records import Records
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.stop import StopResult

RELEASE_SECONDS = 30.0
"""How long the job may take to end by itself once its run was stopped; then it is cancelled."""


def batch_of(args: argparse.Namespace, *, part: bool = True) -> tuple[BatchJob, SlurmState] | None:
    """Return the batch job of the run that is meant, if its nodes cannot be asked.

    If they can, RUN in `args` becomes that run.

    Args:
        part: as `Session.run` has it.
    """
    records = Records()
    jobs = BatchJobs(records)
    batch = (
        jobs.find(args.run, part=part, prefer=own_cluster(args))
        if args.run
        else _newest(args, records, jobs)
    )
    if batch is None:
        return None
    state = SlurmState() if jobs.exit_code(batch) is not None else jobs.slurm_state(batch)
    if asks_nodes(batch, jobs, state):
        args.run = batch.run
        return None
    return batch, state


def view_of_batch(batch: BatchJob, state: SlurmState) -> RunStatus:
    """Return the status of a batch job whose nodes cannot be asked."""
    return batch_status(batch, BatchJobs(Records()), state)


def stop_batch(batch: BatchJob, state: SlurmState, screen: Screen) -> StopResult:
    """End a batch job that started nothing, or has ended; ClusterError if it takes too long."""
    if state.phase != "ended":
        state = cancel(batch)
    screen.say(Notice(text=f"{batch.run}: Slurm job {batch.job} has ended: {state.words}"))
    return StopResult(run=batch.run, nodes=())


def live_batches(args: argparse.Namespace) -> list[BatchJob]:
    """Return the batch jobs of the inventory's cluster that Slurm has not ended."""
    jobs = BatchJobs(Records())
    found = [batch for batch in jobs.all() if jobs.exit_code(batch) is None]
    if not found or _in_allocation():
        return []
    cluster = load_all(args)
    mine = [batch for batch in found if cluster.by_slurm and batch.cluster == cluster.name]
    return [batch for batch in mine if jobs.live(batch)]


def list_batches(cluster: Cluster) -> RunList | None:
    """Return the runs of a cluster whose nodes Slurm chooses; None: its nodes can be asked."""
    if not cluster.by_slurm or _in_allocation():
        return None
    return batch_runs(Records(), cluster.name)


def print_batch(batch: BatchJob, *, tail: int | None, grep: str | None) -> None:
    """Print what a batch job has printed on stdout, the ranks' lines."""
    try:
        wanted = re.compile(grep or "")
    except re.error as error:
        raise UsageError(
            f"--grep: expected a regular expression, found {grep!r}: {error}"
        ) from error
    jobs = BatchJobs(Records())
    try:
        text = (jobs.folder(batch) / "out").read_text(errors="replace")
    except FileNotFoundError:
        return
    lines = [line for line in text.splitlines() if wanted.search(line)]
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print(strip_controls(line))


def note_ending(run: str) -> None:
    """Tell and keep why Slurm ends the batch job of a run, in which this is.

    What the ranks still print cannot be shown: no step can be started in such a job.
    """
    jobs = BatchJobs(Records())
    batch = jobs.find(run, part=False)
    if batch is not None:
        with suppress(ClusterError):
            state = slurm.ask_ending(batch.job)
            jobs.keep(batch, state)
            text = f"{run}: Slurm ends job {batch.job}: {state.words}; its ranks have got SIGTERM"
            Screen().say(Notice(text=text, level="warning"))


@contextmanager
def held(run: str) -> Iterator[None]:
    """Keep the Slurm job of a run while the block stops the run; then wait for its end."""
    jobs = BatchJobs(Records())
    batch = jobs.find(run, part=False)
    if batch is None:
        yield
        return
    stopping = jobs.folder(batch) / "stopping"
    stopping.touch()
    try:
        yield
    finally:
        stopping.unlink(missing_ok=True)
    try:
        wait_until_ended(batch, RELEASE_SECONDS)
    except ClusterError:
        cancel(batch)


def _newest(args: argparse.Namespace, records: Records, jobs: BatchJobs) -> BatchJob | None:
    """Return the only live batch job, else the newest, if no newer run is known.

    Raises:
        SeveralLive: several are live.
    """
    batches = jobs.all()
    if not batches or _in_allocation():
        return None
    if args.inventory or inventory_path(args).exists():
        cluster = load_all(args)
        if not cluster.by_slurm:
            return None
        batches = [batch for batch in batches if batch.cluster == cluster.name]
    live = [batch for batch in batches if jobs.live(batch)]
    if len(live) > 1:
        views = [batch_status(batch, jobs, jobs.slurm_state(batch)) for batch in live]
        several = SeveralLive(views)
        name_each_run(args, several)
        raise several
    newest = next(iter(live or batches), None)
    if newest is None or live:
        return newest
    submitted = {batch.run for batch in batches}
    others = (one for one in records.newest_first(newest.cluster) if one.run not in submitted)
    latest = next(others, None)
    return newest if latest is None or newest.began > latest.began else None


def _in_allocation() -> bool:
    try:
        return allocation() is not None
    except BadRange:
        return False
