"""What a run is doing, or how it ended and why, asked of its nodes."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from clusterctl.checks.storage.run_paths import share_of
from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.checkpoint import (
    Checkpoint,
    CheckpointsAnswer,
    NodeCheckpoint,
    OneCheckpointAnswer,
)
from clusterctl.model.dump import NodeDump
from clusterctl.model.verdict import Verdict
from clusterctl.plan.run_names import fill_job
from clusterctl.transport.interface import Request
from clusterctl.verbs.checkpoints.choose import newest_complete
from clusterctl.verbs.checkpoints.other_runs import with_other_runs
from clusterctl.verbs.events import Emit, ignore
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, call_validated
from clusterctl.verbs.runs.history import History, unrecorded
from clusterctl.verbs.runs.node_answers import find_cause, node_answers
from clusterctl.verbs.runs.run_state import BAD_ENDS, NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus

T = TypeVar("T")


def status(
    nodes: Nodes, run: str, cluster: Cluster, history: History | None = None, *, emit: Emit
) -> RunStatus:
    """Ask every node of a run.

    Args:
        cluster: the nodes that ran it, in launch order.
        history: the run and those that it resumes; None: nothing is known of those.
        emit: called with each event: `Progress`.
    """
    view = node_answers(nodes, run, cluster, emit=emit)
    return with_details(nodes, cluster, view, history)


def with_details(
    nodes: Nodes, cluster: Cluster, view: RunStatus, history: History | None = None
) -> RunStatus:
    """Add what some node must be asked for: the first cause, why it hangs, its checkpoint."""
    run = view.run
    job = fill_job(cluster.job, run, view.name)
    view = replace(view, command=job.command or view.command)
    view = _with_checkpoint(nodes, cluster, view, history or unrecorded(run))
    if view.state in BAD_ENDS:
        view = replace(view, first_cause=find_cause(nodes, cluster, view))
    if view.state == "hung" or view.ended_by == "hang" or view.stacks_kept:
        view = replace(view, verdict=_kept_verdict(nodes, run, cluster, live=view.live))
    return view


def _kept_verdict(nodes: Nodes, run: str, cluster: Cluster, *, live: bool) -> Verdict | None:
    """Return why the run stands still, by the stacks that its nodes kept when they noticed."""
    from clusterctl.verbs.dump.dump import DumpQuery, dump  # noqa: PLC0415  (imports much)

    found = dump(nodes, run, cluster, DumpQuery(kept=True), limit=ANSWER_SECONDS, emit=ignore)
    if live:
        found = replace(found, dumps=tuple(_until_now(one) for one in found.dumps))
    why = found.verdict
    # A collective that timed out had its own words; these add a rank, or nothing.
    return why if why is None or why.ranks or not found.at_timeout else None


def _until_now(kept: NodeDump) -> NodeDump:
    """Return stacks of ranks that have been quiet ever since, for so much longer."""
    passed = max(0.0, time.time() - kept.time)
    ranks = (
        one if one.quiet_s is None else replace(one, quiet_s=one.quiet_s + passed)
        for one in kept.ranks
    )
    return replace(kept, ranks=tuple(ranks))


def _with_checkpoint(
    nodes: Nodes, cluster: Cluster, view: RunStatus, history: History
) -> RunStatus:
    """Add the checkpoint that `resume --checkpoint latest` would verify first."""
    first = next((answer for answer in view.nodes if answer.node_run), None)
    if first is None or not cluster.job.checkpoints:
        return view
    folders = history.folders(cluster.job, view.name)
    try:
        one = _newest(nodes, cluster, first, folders, history)
        if one is not None and not one.recorded:
            # Only now it matters who else may have written it: more nodes take longer to ask.
            history = with_other_runs(nodes, cluster, history)
            if history.others:
                one = _newest(nodes, cluster, first, folders, history)
    except CouldNotTell:
        return view
    view = replace(view, checkpoints=folders[0])
    if one is None:
        return view
    checkpoint = Checkpoint(
        path=one.path,
        step=one.step,
        time=one.time,
        format=one.format,
        run=one.run,
        missing_on=_lacking(nodes, cluster, view, one),
    )
    return replace(view, checkpoint=checkpoint)


def _lacking(nodes: Nodes, cluster: Cluster, view: RunStatus, newest: NodeCheckpoint) -> str:
    """Return a node that has not this checkpoint, which no resume can take then; empty: none found.

    One other node is asked: on disks of their own, all but the one that saved lack it, or each
    saved one of its own.
    """
    path = newest.path
    folders = [(one.node, one.node_run.workdir) for one in view.nodes if one.node_run][:2]
    if len({folder for _, folder in folders}) != 1 or len(folders) == 1 or share_of(cluster, path):
        return ""
    asked, workdir = folders[1]
    args = {"workdir": workdir or None, "path": cluster.job.checkpoints, "which": path}
    request = {asked.name: Request(op="checkpoints", args=args)}
    answers, errors = call_validated(nodes, request, OneCheckpointAnswer, timeout=ANSWER_SECONDS)
    seen = [one for answer in answers.values() for one in answer.candidates]
    lacks = any(error.state == "missing" for error in errors) or not all(
        one.part or (one.complete and one.hash == newest.hash) for one in seen
    )
    return asked.name if lacks else ""


def _newest(
    nodes: Nodes, cluster: Cluster, first: NodeAnswer, folders: Sequence[str], history: History
) -> NodeCheckpoint | None:
    """Return the newest checkpoint of the first folder that has one.

    The first node of the run that answers looks at the structure of the files, not at all their
    bytes.

    Raises:
        CouldNotTell: a folder did not answer: what is in an older one need not be the newest.
    """
    name = first.node.name
    workdir = first.node_run.workdir if first.node_run else ""
    known = {"workdir": workdir or None, **history.args(cluster, first.node)}

    def ask(wanted: type[T], **more: str) -> tuple[dict[str, T], tuple[NodeError, ...]]:
        request = Request(op="checkpoints", args={**known, **more})
        return call_validated(nodes, {name: request}, wanted, timeout=ANSWER_SECONDS)

    def begun_from() -> NodeCheckpoint | None:
        """Without a checkpoint of its own, a run is where it began."""
        if not history.begin:
            return None
        answers, _ = ask(OneCheckpointAnswer, path=folders[0], which=history.begin)
        found = (one for answer in answers.values() for one in answer.candidates)
        return next((one for one in found if one.complete or one.part), None)

    for folder in folders:
        answers, errors = ask(CheckpointsAnswer, path=folder)
        for error in errors:
            if error.state != "missing":
                raise CouldNotTell(str(error))
        candidates = {node: answer.candidates for node, answer in answers.items()}
        knows = {node: answer.knows for node, answer in answers.items()}
        one = newest_complete(candidates, knows, cluster, history)
        if one is not None:
            return one if history.has_written([one]) else begun_from() or one
    return begun_from()
