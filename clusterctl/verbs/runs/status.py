"""What a run is doing, or how it ended and why, asked of its nodes."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.first_cause import FirstCause
from clusterctl.transport.interface import Request
from clusterctl.verbs.checkpoints.choose import newest
from clusterctl.verbs.events import Event
from clusterctl.verbs.launch.join_failure import cause_of_ends
from clusterctl.verbs.response_schema import CHECKPOINTS, STATUS
from clusterctl.verbs.rpc import (
    ANSWER_SECONDS,
    NodeError,
    Nodes,
    call_all,
    run_args,
    validated_answer,
)
from clusterctl.verbs.runs.history import History, only
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import BAD_ENDS, Checkpoint, NodeAnswer, RunStatus, name_of
from clusterctl.wire import Message


def status(
    nodes: Nodes, run: str, cluster: Cluster, history: History | None = None
) -> Generator[Event, None, RunStatus]:
    """Ask every node of a run.

    Args:
        nodes: where to ask.
        run: its name.
        cluster: the nodes that ran it, in launch order.
        history: the run and those that it resumes; None: nothing is known of those.

    Yields:
        `Progress`.
    """
    view = yield from node_answers(nodes, run, cluster)
    if view.state in BAD_ENDS:
        view = replace(view, first_cause=find_cause(nodes, cluster, view))
    checkpoint = newest_checkpoint(nodes, cluster, view, history or only(run))
    return replace(view, checkpoint=checkpoint)


def node_answers(nodes: Nodes, run: str, cluster: Cluster) -> Generator[Event, None, RunStatus]:
    """Ask every node for its part, and no more than that.

    Yields:
        `Progress`.
    """
    requests = {
        node.name: Request(op="status", args=run_args(run, cluster, node)) for node in cluster.nodes
    }
    parts: dict[str, Mapping[str, Any]] = {}
    failures: dict[str, str] = {}
    replies = yield from call_all(nodes, requests, phase="status")
    for reply in replies.values():
        told = validated_answer(reply, STATUS)
        if not isinstance(told, NodeError):
            parts[reply.node] = told["node"]
        elif not (told.answered and told.kind == "no-run"):
            failures[reply.node] = told.advice
    return view_of(run, cluster, parts, failures)


def view_of(
    run: str,
    cluster: Cluster,
    parts: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> RunStatus:
    """Put the nodes' parts together."""
    began = [part["began"] for part in parts.values() if part.get("began")]
    return RunStatus(
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


def find_cause(nodes: Nodes, cluster: Cluster, view: RunStatus) -> FirstCause | None:
    """Read the events and the ends of the logs, and say why the run ended badly."""
    log = RunLog(view.run, cluster)
    requests = {
        answer.node.name: log.end_request(answer.node.name, answer.part)
        for answer in view.nodes
        if answer.part
    }
    until = time.monotonic() + ANSWER_SECONDS
    with nodes.following(requests, tick=ANSWER_SECONDS, patience=ANSWER_SECONDS) as stream:
        for item in stream:
            if time.monotonic() > until:
                break  # a node that never ends must not keep what the others said
            if item is not None and isinstance(item[1], Message):
                for _ in log.take(item[0], item[1], now=0.0):
                    pass
                if log.is_hopeless(item[0]):
                    stream.drop(item[0])
    return log.first_cause() or cause_of_ends(view)


def newest_checkpoint(
    nodes: Nodes, cluster: Cluster, view: RunStatus, history: History
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
    (reply,) = nodes.call({name: Request(op="checkpoints", args=args)}, timeout=ANSWER_SECONDS)
    told = validated_answer(reply, CHECKPOINTS)
    if isinstance(told, NodeError):
        return None
    one = newest({name: told["candidates"]}, {name: bool(told.get("knows"))}, cluster, history)
    if one is None:
        return None
    step = one.get("step")
    return Checkpoint(path=one["path"], step=step, time=one["time"], format=one["format"])
