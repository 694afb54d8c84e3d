"""Start a planned run: the master first, the workers at once when its process is up.

What was started is ended again when any node cannot start its part.
"""

from collections.abc import Iterable, Mapping, Sequence

from clusterctl.errors import Interrupted, LaunchRefused, NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.answers import StartAnswer
from clusterctl.model.node_run import Resumed
from clusterctl.plan.certificate import make_identity
from clusterctl.plan.node_job import node_job, node_secrets
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event, Notice, Progress, ignore
from clusterctl.verbs.rpc import Nodes, validated_answer
from clusterctl.verbs.stop import stop

START_SECONDS = 300.0
"""Longest a node may take to start its part: `env_init` alone may take two minutes."""


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
    resumed: Resumed | None = None,
    *,
    launched: Mapping[str, str] | None = None,
    force: bool = False,
    emit: Emit,
) -> None:
    """Start every node's part.

    Args:
        cluster: the nodes of the plan.
        environment: the controller's own; only what `env_from` names is taken.
        resumed: of a resume, the run and the checkpoint that it resumes from.
        launched: the record of the launch, with its proof.
        force: start also where the last sync did not finish, and let ranks meet elsewhere.
        emit: called with each event: `Started`.

    Raises:
        LaunchRefused: a node did not start its part; the others' were ended again. `busy`: others
            use a node, and nothing of the run is left.
        Interrupted: the person ended it.
    """
    identity = make_identity(plan.run)

    def request(node: NodePlan, link_port: int) -> Request:
        state = cluster.node(node.node).state
        job = node_job(
            plan,
            node,
            identity,
            job=cluster.job,
            state=state,
            link_port=link_port,
            resumed=resumed,
            launched=launched,
        )
        secrets = node_secrets(plan, node, identity, environment, cluster.job.webhooks)
        return Request(op="start", args={"job": job, "forces": force}, body=secrets)

    begun: list[str] = []
    names = (plan.master.node, *(node.node for node in plan.workers))
    phase = "env_init and start" if cluster.job.env_init else "start"
    started: list[str] = []
    try:
        port = 0
        emit(Progress.of_nodes(phase, names, started))
        for stage in ((plan.master,), plan.workers):
            errors: list[NodeError] = []
            begun += [node.node for node in stage]
            requests = {node.node: request(node, port) for node in stage}
            for reply in nodes.call(requests, timeout=START_SECONDS):
                answer = validated_answer(reply, StartAnswer)
                if isinstance(answer, NodeError):
                    errors.append(answer)
                    continue
                port = port or answer.link_port
                started.append(reply.node)
                emit(Started(node=reply.node, pid=answer.pid))
                if len(started) < len(names):
                    emit(Progress.of_nodes(phase, names, started))
            _refuse(errors)
    except LaunchRefused as refused:
        left = _end(nodes, cluster, plan.run, begun)
        hints = (refused.hint, _stop_hint(plan.run, left))
        raise LaunchRefused(
            "\n".join([str(refused), *left]),
            hint="\n".join(filter(None, hints)) or None,
            by="start" if left else refused.by,
        ) from refused
    except KeyboardInterrupt:
        # Half a run is of no use, and would hold the nodes.
        try:
            emit(Notice(text="interrupted: ending what was started", level="warning"))
        except BaseException:  # such as that stdout is closed
            _end(nodes, cluster, plan.run, begun)
            raise
        left = _end(nodes, cluster, plan.run, begun)
        message = "\n".join(left) or f"{plan.run}: interrupted; nothing of it is left"
        raise Interrupted(message, hint=_stop_hint(plan.run, left)) from None
    except BaseException:
        _end(nodes, cluster, plan.run, begun)
        raise


def _end(nodes: Nodes, cluster: Cluster, run: str, begun: Iterable[str]) -> list[str]:
    """End what was started; return what is not verified. Ctrl-C does not wait for that."""
    names = frozenset(begun)
    begun_on = cluster.with_nodes(tuple(node for node in cluster.nodes if node.name in names))
    reason = "not every node could start its part"
    try:
        result = stop(
            nodes, run, begun_on, grace=0.0, reason=reason, prevent_start=True, emit=ignore
        )
    except KeyboardInterrupt:
        listed = ", ".join(node.name for node in begun_on.nodes)
        what = f"it is not known what is left on {listed}"
        return [f"{run}: interrupted; {what}"]
    left, unknown = f"something of {run} is left", f"what is left of {run} is unknown"
    return [
        f"{node.node}: {left if node.left or node.strangers else f'{unknown}: {node.failure}'}"
        for node in result.nodes
        if node.left or node.strangers or node.failure
    ]


def _stop_hint(run: str, left: Sequence[str]) -> str | None:
    """Return what ends the rest, if there may be any."""
    return f"clusterctl stop {run}" if left else None


def _refuse(errors: Iterable[NodeError]) -> None:
    """Refuse the launch if nodes did not start; those with the same error are named together."""
    messages: dict[str, list[str]] = {}
    hints: dict[str, list[str]] = {}
    busy = False
    for error in sorted(errors, key=lambda one: one.node):
        busy = busy or error.state == "busy"
        messages.setdefault(str(error), []).append(error.node)
        if error.hint:
            hints.setdefault(error.hint, []).append(error.node)
    if messages:
        hint = _by_nodes(hints) if len(hints) > 1 else next(iter(hints), None)
        raise LaunchRefused(_by_nodes(messages), hint=hint, by="busy" if busy else "start")


def _by_nodes(texts: Mapping[str, list[str]]) -> str:
    """Return a line for each text, with its nodes."""
    return "\n".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
