"""Start a planned run: the master first, the workers at once when its process is up.

What was started is ended again when any node cannot start its part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import Interrupted, LaunchRefused, NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.certificate import Identity, make_identity
from clusterctl.plan.node_job import node_job, node_secrets
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Event, Notice, drive
from clusterctl.verbs.response_schema import STARTED
from clusterctl.verbs.rpc import Nodes, validated_answer
from clusterctl.verbs.stop import stop

START_SECONDS = 300.0
"""Longest a node may take to start its part: `env_init` alone may take two minutes."""
NO_GRACE = 0.0
"""Seconds until KILL for what has only just begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A node's part of the run is up."""

    kind = "started"

    node: str
    pid: int


def start_run(
    nodes: Nodes,
    cluster: Cluster,
    plan: Plan,
    environment: Mapping[str, str],
    resumed: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> Generator[Event, None, None]:
    """Start every node's part.

    Args:
        nodes: where to start it.
        cluster: the nodes of the plan.
        plan: what to start.
        environment: the controller's own; only what `env_from` names is taken.
        resumed: of a resume, the run and the checkpoint that it resumes from.
        force: start also where the last sync did not finish.

    Yields:
        `Started`.

    Raises:
        LaunchRefused: a node did not start its part; the others' were ended again.
        Interrupted: the person ended it.
    """
    starter = _Starter(cluster, plan, make_identity(plan.run), environment, resumed, force)
    begun: list[str] = []
    try:
        port = 0
        for stage in ((plan.master,), plan.workers):
            wrong: list[NodeError] = []
            begun += [node.node for node in stage]
            requests = {n.node: starter.request(n, port) for n in stage}
            for reply in nodes.call(requests, timeout=START_SECONDS):
                told = validated_answer(reply, STARTED)
                if isinstance(told, NodeError):
                    wrong.append(told)
                    continue
                port = port or told["link_port"]
                yield Started(node=reply.node, pid=told["pid"])
            _refuse(wrong)
    except LaunchRefused as refused:
        raise LaunchRefused(
            "\n".join([str(refused), *_end(nodes, cluster, plan.run, begun)]),
            hint=refused.hint,
            by=refused.by,
        ) from refused
    except KeyboardInterrupt:
        # Half a run helps nobody, and would hold the nodes.
        try:
            yield Notice(text="interrupted: ending what was started", level="warning")
        finally:  # also when nobody can read that any more
            left = _end(nodes, cluster, plan.run, begun)
        message = "\n".join(left) or f"{plan.run}: interrupted; nothing of it is left"
        raise Interrupted(message) from None
    except BaseException:
        _end(nodes, cluster, plan.run, begun)
        raise


@dataclass(frozen=True, slots=True)
class _Starter:
    """Makes the request that starts a node's part."""

    cluster: Cluster
    plan: Plan
    identity: Identity
    environment: Mapping[str, str]
    resumed: Mapping[str, Any] | None
    force: bool

    def request(self, node: NodePlan, link_port: int) -> Request:
        state = self.cluster.node(node.node).state
        job = node_job(
            self.plan,
            node,
            self.identity,
            state=state,
            link_port=link_port,
            resumed=self.resumed,
        )
        secrets = node_secrets(self.plan, node, self.identity, self.environment)
        return Request(op="start", args={"job": job, "forces": self.force}, body=secrets)


def _end(nodes: Nodes, cluster: Cluster, run: str, begun: Iterable[str]) -> list[str]:
    """End what was started; return what is not verified. Ctrl-C does not wait for that."""
    names = frozenset(begun)
    part = cluster.with_nodes(tuple(node for node in cluster.nodes if node.name in names))
    reason = "not every node could start its part"
    ending = stop(nodes, run, part, grace=NO_GRACE, reason=reason, prevent_start=True)
    try:
        result = drive(ending, lambda _event: None)
    except KeyboardInterrupt:
        asked = ", ".join(node.name for node in part.nodes)
        what = f"it is not known what is left on {asked}"
        return [f"{run}: interrupted; {what}: clusterctl stop {run}"]
    left = "something of it is left"
    return [
        f"{node.node}: {left if node.left or node.strangers else node.failure}:"
        f" clusterctl stop {run}"
        for node in result.nodes
        if node.left or node.strangers or node.failure
    ]


def _refuse(wrong: list[NodeError]) -> None:
    """Say of every node that did not start why; nodes with the same words are named together.

    Raises:
        LaunchRefused: there is any.
    """
    if not wrong:
        return
    said: dict[str, list[str]] = {}
    for problem in sorted(wrong, key=lambda one: one.node):
        said.setdefault(_words(problem), []).append(problem.node)
    message = "\n".join(f"{', '.join(names)}: {words}" for words, names in said.items())
    by = "busy" if any(problem.state == "busy" for problem in wrong) else "start"
    raise LaunchRefused(message, hint=_hints(wrong), by=by)


def _hints(wrong: list[NodeError]) -> str | None:
    """Return each different hint on a line of its own, of several with the nodes it is for."""
    hints: dict[str, list[str]] = {}
    for problem in sorted(wrong, key=lambda one: one.node):
        if problem.hint:
            hints.setdefault(problem.hint, []).append(problem.node)
    if len(hints) > 1:
        return "\n".join(f"{', '.join(names)}: {hint}" for hint, names in hints.items())
    return next(iter(hints), None)


def _words(problem: NodeError) -> str:
    if problem.state == "busy":
        return f"the node is busy: {problem}"
    return str(problem)
