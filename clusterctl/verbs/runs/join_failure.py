"""Why a run ended before its ranks ran: who did not reach the master, and what they share."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.checks.wording import counted
from clusterctl.logs.first_cause import (
    EACH_OTHER,
    LATE_REMEDY,
    MORE_TIME,
    SLOW_START,
    CauseKind,
    FirstCause,
)
from clusterctl.logs.known_errors import FAULTY_GPU
from clusterctl.node.restart.judgement import NO_CHECKPOINT
from clusterctl.node.supervisor.worlds.judge_world import OWN_STORE
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.runs.way_on import relaunch

_MOST_LATE = 4
LOST_REMEDY = "clusterctl check names the node that does not answer; --exclude leaves it out"
WORLD_REMEDY = (
    "let the script give its launcher --nnodes=$NNODES --node-rank=$NODE_RANK"
    " --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT, which clusterctl sets on each node"
)
WITHIN_LAUNCHER = (
    "leave the launcher out of the command, since clusterctl starts one on each node\n"
    "or start the command once per node (--launcher direct --procs-per-node 1)"
)
IN_PYTHON = (
    "leave the ranks to clusterctl: call the function itself, without a launcher of Python's\n"
    "or start the program once per node (--launcher direct --procs-per-node 1), and give its"
    ' launcher all nodes: min_nodes=max_nodes=int(os.environ["NNODES"]), rdzv_backend="c10d",'
    ' rdzv_endpoint="{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ)'
)


def join_failure(view: RunStatus, missing: Sequence[str], seconds: float) -> FirstCause:
    """Return why the run was ended by the controller: ranks had not joined in time.

    Args:
        view: what the nodes answered.
        missing: the nodes that had not joined, or their ranks as `node:rank`.
        seconds: how long the others waited.
    """
    shared = _not_reached(view.nodes)
    if shared is not None:
        return shared
    node, rank = missing[0], ""
    if all(answer.node.name != node for answer in view.nodes):  # IPv6 addresses have colons, too
        node, _, rank = node.rpartition(":")
    message = f"not joined within {seconds:g} s: {', '.join(missing)}"
    return _cause(node, "start-timeout", message, LATE_REMEDY, rank=int(rank) if rank else None)


def why_ended(log: RunLog, view: RunStatus) -> FirstCause | None:
    """Return why a run failed, as its events or its nodes' ends tell; None: they do not."""
    cause = log.first_cause()
    if cause is None:
        cause = cause_of_ends(view)
        return cause and with_late_nodes(cause, log.late)
    bad = {cause.node, *log.left_out}
    names = ",".join(node.name for node in log.cluster.nodes if node.name in bad)
    none = bool(view.checkpoints) and view.checkpoint is None
    resumes = bool(log.cluster.job.checkpoints) and not none
    without = relaunch(log.run, log.cluster, "--exclude", names, name=view.name, resumes=resumes)
    way = "continue" if resumes else "start from the beginning"
    if view.no_restart.startswith(NO_CHECKPOINT):
        without += "; it first names the push that brings a checkpoint to the nodes that lack it"
    if cause.remedy == FAULTY_GPU and len(bad) < len(log.cluster.nodes):
        return replace(cause, remedy=f"the GPU is faulty; to {way} without it: {without}")
    if cause.kind != "node-lost":
        return with_late_nodes(cause, log.late)
    if EACH_OTHER in cause.message:
        return replace(cause, remedy=f"{cause.remedy}\nto {way} without {cause.node}: {without}")
    back = f"when {cause.node} answers: clusterctl check --nodes {shlex.quote(cause.node)}"
    return replace(cause, remedy=f"to {way} without it: {without}\n{back}")


def with_late_nodes(cause: FirstCause, late: Mapping[str, str]) -> FirstCause:
    """Add what every late node was doing; what the cause says already is not repeated."""
    told = [
        f"{node}: {phase}"
        for node, phase in late.items()
        if phase not in cause.message
        and not ("not reach" in phase and "not reach" in cause.message)
    ]
    # While one runs its env_init, the others wait.
    if cause.kind != "start-timeout" or not told or SLOW_START in cause.message:
        return cause
    more = len(told) - _MOST_LATE
    told[_MOST_LATE:] = [f"and {counted(more, 'more node')}"] if more > 0 else []
    return replace(cause, message="; ".join([cause.message, *told]))


def cause_of_ends(view: RunStatus) -> FirstCause | None:
    """Return the cause that the nodes' ends tell, if no event does; None: they tell none."""
    for answer in view.nodes:
        if answer.end is None:
            continue
        by, when = answer.end.by, float(answer.end.time or 0.0)
        reason = answer.end.reason or by
        if by == "world":
            within = answer.node_run is not None and answer.node_run.launcher_joined is not None
            remedy = WITHIN_LAUNCHER if within else WORLD_REMEDY
            remedy = IN_PYTHON if OWN_STORE in reason else remedy
            return _cause(answer.node.name, "world", reason, remedy, when=when)
        if by == "hang":
            remedy = f"the stacks of all ranks were kept: clusterctl dump {view.run}"
            return _cause(answer.node.name, "hang", reason, remedy, when=when)
        if by == "start-timeout":
            return _not_reached(view.nodes, when=when) or _cause(
                answer.node.name, "start-timeout", reason, LATE_REMEDY, when=when
            )
        if by == "lost" and not all(one.cleared_up for one in view.nodes):
            return _cause(answer.node.name, "node-lost", reason, LOST_REMEDY, when=when)
    return None


def _not_reached(answers: Sequence[NodeAnswer], *, when: float | None = None) -> FirstCause | None:
    """Return the cause that all nodes share which did not reach the master; None: there is none.

    That no other node reaches the master is the master's doing: what comes in there is dropped.
    """
    first, *others = answers
    master = first.node_run.master if first.node_run else None
    if master is None or not _has_joined(first):
        return None
    late = [answer for answer in others if answer.node_run and not _has_joined(answer)]
    tried = any(map(_has_tried, late))
    if not late or not (tried or len(late) == len(others)):
        return None
    names = [answer.node.name for answer in late]
    verb = ("does" if len(late) == 1 else "do") if tried else ("has" if len(late) == 1 else "have")
    how = "not reach" if tried else "not reached"
    message = f"{_joined_with_and(names)} {verb} {how} {master.address}:{master.port}"
    other_port = f"try another port: --master-port P; {MORE_TIME}"
    if len(late) == len(others):
        name = first.node.name
        remedy = f"look at {name}'s firewall: it must accept port {master.port}"
    else:
        name = names[0]
        remedy = f"look at the firewall and the routes of {_joined_with_and(names)}"
    if not tried:  # they may have been busy
        remedy = f"clusterctl check tries the port from every node; if it fails, {remedy}"
    return _cause(name, "start-timeout", message, f"{remedy}; or {other_port}", when=when)


def _has_joined(answer: NodeAnswer) -> bool:
    """Tell whether a node's launcher, or a rank if there is no launcher, reached the master."""
    launcher = answer.node_run.launcher_joined if answer.node_run else None
    return bool(launcher or answer.joined)


def _has_tried(answer: NodeAnswer) -> bool:
    """Tell whether a node is known to have tried; a rank that sleeps does not reach it either."""
    launcher = answer.node_run.launcher_joined if answer.node_run else None
    reason = answer.end.reason if answer.end else ""
    return launcher is False or "does not reach" in reason


def _joined_with_and(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


def _cause(
    node: str,
    kind: CauseKind,
    message: str,
    remedy: str,
    *,
    rank: int | None = None,
    when: float | None = None,
) -> FirstCause:
    return FirstCause(
        node=node,
        rank=rank,
        time=time.time() if when is None else when,
        kind=kind,
        message=message,
        remedy=remedy,
    )
