"""Collects all that is known of one run: status, record, events, metrics and samples."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clusterctl.errors import ClusterError, NodeError
from clusterctl.facts.nodefacts import NodeFacts, from_document
from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.metrics import Metrics, read_metrics
from clusterctl.model.answers import MetricsAnswer, SamplesAnswer
from clusterctl.model.samples import Samples
from clusterctl.plan.command.output_folder import own_folder
from clusterctl.plan.run_names import fill_text
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.compare.timeline import (
    MOST_EVENTS,
    Moment,
    attempts_began,
    paused_seconds,
    timeline,
    words,
)
from clusterctl.verbs.events import Emit, NodeEvent, Notice
from clusterctl.verbs.quarantine.store import read_entries
from clusterctl.verbs.rpc import (
    ANSWER_SECONDS,
    Nodes,
    call_all,
    call_validated,
    run_args,
    validated_answer,
)
from clusterctl.verbs.runs.one_run import OneRun, one_run
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import Message

_METRICS_BYTES = 4 << 20
"""More than a node sends."""
_SAMPLES = 300
"""Of a node: as many as a plot shows."""
OUTPUT = "out"
"""The usual folder of a training's results, looked into if the job names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A run from its launch to now."""

    one: OneRun
    facts: Mapping[str, NodeFacts] | None = None
    """What the launch was checked by; None: not recorded."""
    diff: str = ""
    """The uncommitted changes of its code."""
    moments: tuple[Moment, ...] = ()
    metrics: Metrics = field(default_factory=Metrics)
    samples: Mapping[str, Samples] = field(default_factory=dict)
    """By node, what it used over time; none of a run of an earlier version."""
    lost_seconds: float = 0.0
    """By restarts."""
    errors: tuple[NodeError, ...] = ()
    """Nodes that did not tell what happened."""

    @property
    def run(self) -> str:
        """Its id."""
        return self.one.line.run

    @property
    def record(self) -> RunRecord | None:
        """What this machine remembers of it."""
        return self.one.record


def tell_story(
    nodes: Nodes,
    cluster: Cluster,
    view: RunStatus,
    record: RunRecord | None,
    records: Records,
    *,
    metrics: str | None = None,
    emit: Emit,
) -> Story:
    """Ask the nodes what happened, and put it together with what this machine remembers.

    Args:
        cluster: the nodes that ran it.
        record: of it, if there is one.
        metrics: where its metrics are, from the workdir; None: a `metrics.jsonl` where its
            checkpoints are, or in `out`; else what the Trainer wrote, and what it printed.
        emit: called with each event: `Progress`, `Notice`.
    """
    events, errors = _events(nodes, cluster, view)
    attempts = attempts_began(events)
    found = _metrics(nodes, cluster, view, record, metrics, attempts, emit=emit)
    lost = found.lost_seconds
    there = cluster.with_nodes(tuple(one.node for one in view.nodes if one.node_run))
    samples, _ = read_samples(nodes, view.run, there) if there.nodes else ({}, ())
    try:
        quarantine = read_entries(records.root)
    except ClusterError as error:
        quarantine = ()
        emit(Notice(text=str(error), level="warning"))
    return Story(
        one=one_run(view, record, records),
        facts=_facts(records, record) if record else None,
        diff=records.diff(record) if record else "",
        moments=timeline(record, events, quarantine),
        metrics=found,
        samples=samples,
        lost_seconds=paused_seconds(events) if lost is None else lost,
        errors=errors,
    )


def read_samples(
    nodes: Nodes, run: str, cluster: Cluster
) -> tuple[dict[str, Samples], tuple[NodeError, ...]]:
    """Return the samples of each node, and the nodes that did not answer.

    A run of an earlier version has none: its nodes answer with an error.
    """
    requests = {
        node.name: Request(
            op="samples", args={**run_args(run, cluster, node), "since": 0.0, "most": _SAMPLES}
        )
        for node in cluster.nodes
    }
    found, errors = call_validated(nodes, requests, SamplesAnswer, timeout=ANSWER_SECONDS)
    return {name: answer.samples for name, answer in found.items()}, errors


def _facts(records: Records, record: RunRecord) -> dict[str, NodeFacts] | None:
    try:
        return from_document(records.facts(record)) or None
    except ValueError:
        return None


def _events(
    nodes: Nodes, cluster: Cluster, view: RunStatus
) -> tuple[dict[str, list[Mapping[str, Any]]], tuple[NodeError, ...]]:
    """Read the events of each node that knows the run; those of no interest are dropped."""
    cluster = cluster.with_nodes(tuple(answer.node for answer in view.nodes))
    log = RunLog(view.run, cluster, judged=False, events_only=True)
    requests = {name: log.read_request(name) for name in view.node_runs}
    events: dict[str, list[Mapping[str, Any]]] = {name: [] for name in view.node_runs}
    errors = [answer.error for answer in view.silent if answer.error]
    if not requests:
        return events, tuple(errors)
    with nodes.following(requests, tick=ANSWER_SECONDS, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if item is None:
                continue
            name, message = item
            if not isinstance(message, Message):
                error = log.node_error(message)
                errors += [error] if error else []
                continue
            for event in log.take_from(stream, name, message, now=0.0):
                if not isinstance(event, NodeEvent) or len(events[name]) >= MOST_EVENTS:
                    continue
                if event.event.get("kind") == "clock" or words(event.event):
                    events[name].append(event.event)
    return events, tuple(errors)


def _metrics(
    nodes: Nodes,
    cluster: Cluster,
    view: RunStatus,
    record: RunRecord | None,
    path: str | None,
    attempts: Mapping[int, float],
    *,
    emit: Emit,
) -> Metrics:
    """Return what the first node that has it recorded: that of rank 0 is asked like the others."""
    requests = {}
    for node in cluster.nodes:
        known = view.node_runs.get(node.name)
        if known is None:
            continue
        folder = own_folder(cluster.job) or (known.checkpoints if record is None else "")
        wanted = [path] if path else [folder, OUTPUT] if folder else [OUTPUT]
        args = {
            **run_args(view.run, cluster, node),
            "printed": path is None,
            "workdir": known.workdir or node.workdir,
            "paths": [fill_text(each, view.run, view.name) for each in wanted],
        }
        requests[node.name] = Request(op="metrics", args=args, body_limit=_METRICS_BYTES)
    replies = call_all(nodes, requests, phase="metrics", emit=emit)
    best = Metrics()
    for name in requests:
        answer = validated_answer(replies[name], MetricsAnswer)
        if isinstance(answer, NodeError) or not answer.file:
            continue
        found = read_metrics(
            replies[name].last.body,
            # A node only knows when its last attempt began, and this machine has another clock.
            began=attempts.get(1) or (record.began if record else view.began) or 0.0,
            ended=view.ended,
            file=answer.file,
            node=name,
            every=max(1, answer.every),
            restarts=tuple(sorted(time for number, time in attempts.items() if number > 1)),
        )
        if len(found.steps) > len(best.steps):
            best = found
    return best
