"""Stop exactly one run on all its nodes, and verify that nothing of it is left."""

import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterctl.errors import NodeError
from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import LeftProcess, PortHolder, StopAnswer
from clusterctl.transport.interface import Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event
from clusterctl.verbs.rpc import Nodes, joined_later, run_args, validated_answer

TICK = 0.5
VERIFY_SECONDS = 60.0
"""Seconds beyond the grace that a node may take for all of it, once it was reached."""

GONE, LEFT, UNVERIFIED = 0, 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Event):
    """A node has reached a stage of stopping."""

    kind = "stopping"

    node: str
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedNode:
    """The result of stopping on one node."""

    node: str
    gone: bool
    """No process of the run is left, its port is free, its GPU memory back: all were seen."""
    left: tuple[LeftProcess, ...] = ()
    """Processes that are still there."""
    strangers: tuple[LeftProcess, ...] = ()
    """Processes that may be of the run, and hold GPU memory."""
    port_free: bool | None = None
    port_holder: PortHolder | None = None
    """Who has the port, where it is not free."""
    elsewhere: tuple[str, ...] = ()
    """Commands of the job whose processes clusterctl does not see, such as those through SSH."""
    failure: str = ""
    """Why the result is unknown."""
    left_out: bool = False
    """The run had continued without it: that its result is unknown is no error."""
    ended: str = ""
    """The state in which the run had ended here before it was stopped; empty: it had not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """The result of stopping a run."""

    run: str
    nodes: tuple[StoppedNode, ...]

    @property
    def exit_code(self) -> int:
        """0 all verified; 1 something is left; 3 a node could not tell, or strangers are left.

        A node that was left out need not tell.
        """
        if any(node.left or node.port_free is False for node in self.nodes):
            return LEFT
        known = (
            node.gone or (node.left_out and node.failure and not node.strangers)
            for node in self.nodes
        )
        return GONE if all(known) else UNVERIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The run was stopped while it was followed."""

    kind = "stopped"

    result: StopResult


def stop(
    nodes: Nodes,
    run: str,
    cluster: Cluster,
    *,
    grace: float | None = None,
    reason: str | None = None,
    by: str = "stop",
    prevent_start: bool = False,
    plan: Mapping[str, Any] | None = None,
    launched_on: Mapping[str, str] | None = None,
    emit: Emit,
) -> StopResult:
    """Ask the ranks as the job says, then TERM, then KILL the whole tree; verify that all exited.

    Args:
        cluster: the nodes that ran it, and the job, which says how long ranks may take.
        grace: seconds until KILL; the job's own where None.
        reason: kept in the nodes' records; who asked where None.
        by: kept there, too: `stop`, or `start-timeout` of a run whose ranks did not join.
        prevent_start: a node on which the start is still under way must not start the run.
        plan: of the run's record; it tells what to verify on a node that has no folder of the run.
        launched_on: the host of each node that the inventory reaches at another one by now.
        emit: called with each event: `Stopping`.
    """
    seconds = cluster.job.stop.grace if grace is None else grace
    order = {
        "grace": seconds,
        "prevent_start": prevent_start,
        "by": by,
        "reason": reason or f"stopped by {own_user()} on {socket.gethostname()}",
    }
    planned = _planned(plan or {})

    def request(node: Node) -> Request:
        args = {**run_args(run, cluster, node), **order, "planned": planned.get(node.name)}
        return Request(op="stop", args=args)

    requests = {node.name: request(node) for node in cluster.nodes}
    replies: dict[str, Reply] = {}
    limit = seconds + VERIFY_SECONDS
    reached: dict[str, float] = {}
    with nodes.following(requests, tick=TICK, answer_timeout=limit) as stream:
        for item in stream:
            now = time.monotonic()
            # A node that does not speak at all ends by itself: by its connection's limits.
            if all(now > reached.get(name, now) + limit for name in requests.keys() - replies):
                break
            if item is None:
                continue
            node, message = item
            reached.setdefault(node, now)
            if isinstance(message, Reply):
                replies[node] = message
                for joined in joined_later(cluster, _told(message).nodes):
                    if joined.name not in requests:
                        requests[joined.name] = request(joined)
                        stream.add(joined.name, requests[joined.name])
            elif "stage" in message.head:
                emit(Stopping(node=node, stage=str(message.head["stage"])))
    master = replies.get(cluster.master.name)  # it is never left out
    left_out = _told(master).left_out if master else ()
    late = f"timeout: not done in {limit:.0f} s"
    outcomes = (
        _stopped_node(replies[name], (launched_on or {}).get(name, ""))
        if name in replies
        else StoppedNode(node=name, gone=False, failure=late)
        for name in requests
    )
    return StopResult(
        run=run, nodes=tuple(replace(one, left_out=one.node in left_out) for one in outcomes)
    )


def _told(reply: Reply) -> StopAnswer:
    """Return a node's answer; of a node that gave none, an empty one."""
    answer = validated_answer(reply, StopAnswer)
    return StopAnswer() if isinstance(answer, NodeError) else answer


def _planned(plan: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a plan says of each node that its proof needs, if it says all of that."""
    master = {"port": plan.get("master_port")}
    return {
        node["node"]: {"node_rank": node["node_rank"], "device": node["device"], "master": master}
        for node in plan.get("nodes") or ()
        if None not in (master["port"], node.get("node_rank"), node.get("device"))
    }


def _stopped_node(reply: Reply, launched_on: str) -> StoppedNode:
    """Judge a node's last answer."""
    answer = validated_answer(reply, StopAnswer)
    if isinstance(answer, NodeError):
        return StoppedNode(node=reply.node, gone=False, failure=str(answer))
    if launched_on and answer.had_run is False:
        failure = f"the run was launched on {launched_on}: this is another machine"
        return StoppedNode(node=reply.node, gone=False, failure=failure)
    looked = {"its port is free": answer.port_free, "its GPU memory is back": answer.gpu_free}
    unseen = [what for what, seen in looked.items() if seen is None]
    if not (answer.gone or answer.left):
        unseen.append("nothing of it is left")
    return StoppedNode(
        node=reply.node,
        gone=answer.gone and all(looked.values()) and not answer.strangers,
        left=answer.left,
        strangers=answer.strangers,
        elsewhere=answer.elsewhere,
        port_free=answer.port_free,
        port_holder=answer.port_holder,
        ended=answer.ended,
        failure=f"could not see whether {' and '.join(unseen)}" if unseen else "",
    )
