"""What a run is doing, or how it ended and why, asked of its nodes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.first_cause import FirstCause
from clusterctl.transport.interface import Request
from clusterctl.verbs.answers import ask, trouble
from clusterctl.verbs.checkpoint import newest
from clusterctl.verbs.events import Event
from clusterctl.verbs.history import History, only
from clusterctl.verbs.late import cause_of_ends
from clusterctl.verbs.nodes import Nodes
from clusterctl.verbs.runargs import run_args
from clusterctl.verbs.runlog import RunLog
from clusterctl.verbs.runview import Checkpoint, NodeAnswer, RunView, name_of
from clusterctl.verbs.shape import NOT_OURS, wrong_part

BAD_ENDS = frozenset({"failed", "lost"})


def status(
    nodes: Nodes, run: str, cluster: Cluster, history: History | None = None
) -> Generator[Event, None, RunView]:
    """Ask every node of a run.

    Args:
        nodes: where to ask.
        run: its name.
        cluster: the nodes that ran it, in launch order.
        history: the run and those that it resumes; None: nothing is known of those.

    Yields:
        `Progress`.
    """
    view = yield from answers(nodes, run, cluster)
    cause = find_cause(nodes, run, cluster, view) if view.state in BAD_ENDS else None
    checkpoint = newest_checkpoint(nodes, cluster, view, history or only(run))
    return replace(view, first_cause=cause, checkpoint=checkpoint)


def answers(nodes: Nodes, run: str, cluster: Cluster) -> Generator[Event, None, RunView]:
    """Ask every node for its part, and no more than that.

    Yields:
        `Progress`.
    """
    requests = {
        node.name: Request(op="status", args=run_args(run, cluster, node)) for node in cluster.nodes
    }
    parts: dict[str, Mapping[str, Any]] = {}
    failures: dict[str, str] = {}
    replies = yield from ask(nodes, requests, phase="status")
    for reply in replies.values():
        wrong = trouble(reply)
        part = reply.last.head.get("node") if wrong is None else None
        if wrong is None and (strange := wrong_part(part)):
            failures[reply.node] = f"{NOT_OURS}: {strange}"
        elif wrong is None:
            parts[reply.node] = part or {}
        elif not (wrong.answered and wrong.kind == "no-run"):
            failures[reply.node] = wrong.advice
    return view_of(run, cluster, parts, failures)


def view_of(
    run: str,
    cluster: Cluster,
    parts: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> RunView:
    """Put the nodes' parts together."""
    began = [part["began"] for part in parts.values() if part.get("began")]
    return RunView(
        run=run,
        cluster=cluster.name,
        nodes=tuple(
            NodeAnswer(node=node, part=parts.get(node.name), failure=failures.get(node.name, ""))
            for node in cluster.nodes
        ),
        command=cluster.job.command,
        name=name_of(parts.values()),
        began=min(began, default=None),
    )


def find_cause(nodes: Nodes, run: str, cluster: Cluster, view: RunView) -> FirstCause | None:
    """Read the events and the ends of the logs, and say why the run ended badly."""
    log = RunLog(run, cluster)
    requests = {
        answer.node.name: log.end_request(answer.node.name, answer.part)
        for answer in view.nodes
        if answer.part
    }
    for reply in nodes.call(requests):
        for message in reply.messages:
            for _ in log.take(reply.node, message, now=0.0):
                pass
    return log.first_cause() or cause_of_ends(view)


def newest_checkpoint(
    nodes: Nodes, cluster: Cluster, view: RunView, history: History
) -> Checkpoint | None:
    """Return the checkpoint that `resume --checkpoint latest` would look at first.

    By a quick look, on the first node that answers.
    """
    if not cluster.job.checkpoints:
        return None
    first = next((answer for answer in view.nodes if answer.part), None)
    if first is None or first.part is None:
        return None
    name = first.node.name
    args = {
        "workdir": first.part.get("workdir"),
        "path": cluster.job.checkpoints,
        **history.args(cluster, first.node),
    }
    (reply,) = nodes.call({name: Request(op="checkpoints", args=args)})
    if trouble(reply):
        return None
    head = reply.last.head
    one = newest({name: head["candidates"]}, {name: bool(head.get("knows"))}, cluster, history)
    if one is None:
        return None
    return Checkpoint(path=one["path"], step=one["step"], time=one["time"], format=one["format"])
