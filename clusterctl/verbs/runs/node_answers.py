"""Asks the nodes of a run what they know of it, and why it failed."""

import itertools
import time
from collections.abc import Mapping

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.answers import StatusAnswer
from clusterctl.model.node_run import NodeRun
from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Emit
from clusterctl.verbs.rpc import (
    ANSWER_SECONDS,
    Nodes,
    call_all,
    joined_later,
    run_args,
    validated_answer,
)
from clusterctl.verbs.runs.join_failure import why_ended
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from clusterctl.wire import Message


def node_answers(nodes: Nodes, run: str, cluster: Cluster, *, emit: Emit) -> RunStatus:
    """Ask every node for its part, and no more than that; emit `Progress`."""
    node_runs: dict[str, NodeRun] = {}
    errors: dict[str, NodeError] = {}
    asked = cluster.nodes
    while asked:
        requests = {
            node.name: Request(op="status", args=run_args(run, cluster, node)) for node in asked
        }
        replies = call_all(nodes, requests, phase="status", emit=emit)
        for reply in replies.values():
            answer = validated_answer(reply, StatusAnswer)
            if not isinstance(answer, NodeError):
                node_runs[reply.node] = answer.node
            elif not (answer.answered and answer.state == "no-run"):
                errors[reply.node] = answer
        names = itertools.chain(*(one.nodes for one in node_runs.values()))
        asked = joined_later(cluster, names)  # since this machine last heard of the run
        cluster = cluster.with_nodes((*cluster.nodes, *asked))
    return view_of(run, cluster, node_runs, errors)


def find_cause(nodes: Nodes, cluster: Cluster, view: RunStatus) -> FirstCause | None:
    """Read the events and the ends of the logs, and return why the run failed."""
    log = RunLog(view.run, cluster.with_nodes(tuple(answer.node for answer in view.nodes)))
    read_ends(nodes, log, view.node_runs)
    return why_ended(log, view)


def read_ends(nodes: Nodes, log: RunLog, node_runs: Mapping[str, NodeRun]) -> None:
    """Read the events, and the end of each rank's log, on these nodes."""
    requests = {name: log.end_request(name, node_run) for name, node_run in node_runs.items()}
    until = time.monotonic() + ANSWER_SECONDS
    with nodes.following(requests, tick=ANSWER_SECONDS, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if time.monotonic() > until:
                break  # a node that never ends must not keep what the others answered
            if item is not None and isinstance(item[1], Message):
                for _ in log.take_from(stream, item[0], item[1], now=0.0):
                    pass
