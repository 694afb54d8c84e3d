"""What became of a batch job whose nodes cannot be asked: it is queued, starting or over."""

import time
from dataclasses import replace

from clusterctl.errors import ClusterError
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.from_json import from_json
from clusterctl.model.run_record import RunEnd
from clusterctl.safe_text import printable_words
from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.job import BatchJob, BatchJobs
from clusterctl.verbs.batch.slurm import SlurmState
from clusterctl.verbs.runs.list_runs import RunList, claimed_line, newest_first, recorded_line
from clusterctl.verbs.runs.records import Records
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import plain

ENDED_SECONDS = 120.0
"""How long the end of a job is waited for: Slurm's KillWait and epilog may take a minute."""
_POLL_SECONDS = 0.5
_ERRORS = 4096
"""Bytes of a job's stderr whose last line tells why it ended."""


def asks_nodes(batch: BatchJob, jobs: BatchJobs, state: SlurmState) -> bool:
    """Tell whether the run is as far as that its nodes tell more than Slurm."""
    return state.phase == "running" and jobs.started(batch) and jobs.exit_code(batch) is None


def batch_status(batch: BatchJob, jobs: BatchJobs, state: SlurmState) -> RunStatus:
    """Return the run's status from Slurm's state and from what is kept of it."""
    end = _end(batch, jobs, state)
    return RunStatus(
        run=batch.run,
        cluster=batch.cluster,
        nodes=(),
        command=batch.command,
        name=batch.name,
        began=batch.began,
        remembered=end,
        first_cause=_cause(end),
        slurm={"job": batch.job, **_document(state)},
    )


def batch_runs(records: Records, cluster: str) -> RunList:
    """List the runs of a cluster whose nodes Slurm chose, without asking any node."""
    jobs = BatchJobs(records)
    known = {record.run: record for record in records.all(cluster)}
    lines = []
    for batch in jobs.all(cluster):
        state = jobs.slurm_state(batch) if jobs.exit_code(batch) is None else SlurmState()
        view = batch_status(batch, jobs, state)
        record, end = known.pop(batch.run, None), view.remembered
        line = recorded_line(record, view, end) if record else claimed_line(view)
        lines.append(
            replace(
                line,
                began=batch.began,
                command=batch.command,
                name=batch.name or line.name,
                ended_by=view.ended_by,
                verified=True,
            )
        )
    lines += [recorded_line(one, None, records.end(one)) for one in known.values()]
    return RunList(runs=newest_first(lines, records), errors=())


def cancel(batch: BatchJob) -> SlurmState:
    """Let Slurm end a job; raise ClusterError if it refuses, or that takes too long."""
    slurm.cancel(batch.job)
    return wait_until_ended(batch, ENDED_SECONDS)


def wait_until_ended(batch: BatchJob, seconds: float) -> SlurmState:
    """Wait for the end of a job; raise ClusterError if it has not ended in time."""
    until = time.monotonic() + seconds
    while (state := slurm.ask(batch.job)).phase != "ended" or state.state == "COMPLETING":
        if time.monotonic() > until:
            raise ClusterError(
                f"{batch.run}: Slurm job {batch.job} is {state.words} after {seconds:g} s",
                hint=f"scancel {batch.job}, then: squeue --job {batch.job}",
            )
        time.sleep(_POLL_SECONDS)
    return state


def _end(batch: BatchJob, jobs: BatchJobs, state: SlurmState) -> RunEnd:
    code = jobs.exit_code(batch)
    if code is None and state.phase != "ended":
        live = "running" if jobs.started(batch) else "starting"
        return RunEnd(state="queued" if state.phase == "queued" else live)
    known = jobs.end(batch)
    if known is not None and not state.cut_short:  # that only says how the ranks took it
        return known
    if code is None:
        stopped = "stopped" if state.state == "CANCELLED" else "failed"
        message = jobs.why_ended(batch, state)
        return RunEnd(state=stopped, ended_by="slurm", message=message)
    return RunEnd(
        state="failed" if code else "finished",
        ended_by="controller",
        message=_last_error(batch, jobs) if code else "",
    )


def _last_error(batch: BatchJob, jobs: BatchJobs) -> str:
    """Return the first error in the last lines of its stderr, else the last line."""
    try:
        with (jobs.folder(batch) / "err").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _ERRORS))
            lines = [line for line in file.read().splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith(b"error:")]
    return printable_words(next(iter(errors), lines[-1] if lines else b""))


def _cause(end: RunEnd) -> FirstCause | None:
    """Return the first cause in what was kept of an end; None: there is none, or it is damaged."""
    if end.first_cause is None:
        return None
    try:
        cause: FirstCause = from_json(FirstCause, plain(end.first_cause), "first_cause")
    except ValueError:
        return None
    return cause


def _document(state: SlurmState) -> dict[str, str]:
    return {"state": state.state, "reason": state.reason, "nodes": state.nodes}
