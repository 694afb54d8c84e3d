"""Ask the nodes' agents: the pool that is needed, the arguments, and what a reply means."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from clusterctl.errors import OPERATION, NodeError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import Failure
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs.events import Emit, Progress
from clusterctl.wire import Message

T = TypeVar("T")
NOT_OURS = "its reply is not a clusterctl message"


class Nodes(Protocol):
    """The nodes of a cluster, reachable or not."""

    cluster: Cluster

    def open(self) -> Iterator[Reply]:
        """Connect to all of them; yield each one's reply."""

    def start(self, node: str, request: Request) -> Call:
        """Start an operation on one of them."""

    def follow(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Message | Reply]]:
        """Merge the messages of calls as they come."""

    def call(
        self, requests: Mapping[str, Request], *, timeout: float = math.inf
    ) -> Iterator[Reply]:
        """Run one operation on each of the nodes; yield each one's reply as it ends."""

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        """Run one operation on each of the nodes and merge their messages as they come."""


def node_args(cluster: Cluster, node: Node) -> dict[str, object]:
    """Return the arguments that name where a node keeps its parts of all runs."""
    args: dict[str, object] = {"cluster": cluster.name, "node": node.name}
    return args | ({"state": node.state} if node.state else {})


def run_args(run: str, cluster: Cluster, node: Node) -> dict[str, object]:
    """Return the arguments that name a node's part of a run."""
    return {**node_args(cluster, node), "run": run}


def joined_later(cluster: Cluster, names: Iterable[str]) -> tuple[Node, ...]:
    """Return those of the nodes that a run has by now which are not known to run it.

    Only the inventory's nodes count: no node makes us connect elsewhere.
    """
    there = frozenset(names)
    return tuple(node for node in cluster.left_out if node.name in there)


WORDS_LIMIT = 16 * 1024
"""Characters of a node's own words that are passed on."""
ANSWER_SECONDS = 60.0
"""Longest a node may take to look through its runs."""


def node_error(reply: Reply) -> NodeError | None:
    """Return what went wrong; None: the operation ended normally."""
    if reply.error is not None:
        return reply.error
    error = reply.last.head.get("error") if reply.messages else None
    if not error:
        return None
    try:
        failure: Failure = from_json(Failure, error, "error")
        from_json(Mapping[str, Any], error, "error")  # its details are shown
    except DocumentError as invalid:
        return bad_output(reply.node, str(invalid))
    return NodeError(
        failure.kind,
        OPERATION,
        failure.message[:WORDS_LIMIT],
        _suggested(failure.hint),
        node=reply.node,
        details=error,
    )


def validated_answer(reply: Reply, wanted: type[T]) -> T | NodeError:
    """Return what a node's operation found, or why there is no such value."""
    error = node_error(reply)
    if error is not None:
        return error
    try:
        answer: T = from_json(wanted, reply.last.head if reply.messages else {}, "")
    except DocumentError as invalid:
        return bad_output(reply.node, str(invalid))
    return answer


def call_validated(
    nodes: Nodes, requests: Mapping[str, Request], wanted: type[T], *, timeout: float
) -> tuple[dict[str, T], tuple[NodeError, ...]]:
    """Run one operation on each of some nodes; return the answers by node, and what failed."""
    answers: dict[str, T] = {}
    errors: list[NodeError] = []
    for reply in nodes.call(requests, timeout=timeout):
        answer = validated_answer(reply, wanted)
        if isinstance(answer, NodeError):
            errors.append(answer)
        else:
            answers[reply.node] = answer
    return answers, tuple(errors)


def bad_output(node: str, invalid: str) -> NodeError:
    """Return the error of a node whose answer is none that its operation gives."""
    return NodeError("bad-output", OPERATION, f"{NOT_OURS}: {invalid}", node=node)


def _suggested(hint: str) -> str:
    """Return a node's hint as the node's: even a single command may be harmful.

    Nothing if a shell it is typed into would run more than one.
    """
    safe = re.sub(r"('[^']*')|;", lambda found: found[1] or ",", hint)
    unquoted = re.sub(r"'[^']*'|`[a-z_]+:`", "", safe)
    if not hint or len(hint) > WORDS_LIMIT or re.search(r"[&|<>$`\"\\\n\r]", unquoted):
        return ""
    return f"the node suggests: {safe}"


def call_all(
    nodes: Nodes,
    requests: Mapping[str, Request],
    *,
    phase: str,
    timeout: float = ANSWER_SECONDS,
    emit: Emit,
) -> dict[str, Reply]:
    """Run one operation on each of some nodes, showing the progress of `phase`.

    `timeout` is in seconds, for each of them. Returns each one's reply.
    """
    replies: dict[str, Reply] = {}
    for reply in nodes.call(requests, timeout=timeout) if requests else ():
        replies[reply.node] = reply
        emit(Progress.of_nodes(phase, requests, replies))
    return replies
