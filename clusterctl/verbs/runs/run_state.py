"""What one node's answer about a run says, and the state that all of them sum up to. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.logs.first_cause import EACH_OTHER, CauseKind, FirstCause
from clusterctl.logs.known_errors import is_secondary
from clusterctl.model.node_run import LeftOut, NodeEnd, NodeRun, RankState
from clusterctl.model.run_record import RecordedCause
from clusterctl.node.peer_link.messages import ORDERED
from clusterctl.node.run.operations.node_run import CLEARED, CLEARED_UP
from clusterctl.values import dataclass
from clusterctl.wire import plain

RunState = Literal[
    "queued", "starting", "running", "hung", "stopping",
    "waiting", "finished", "failed", "stopped", "lost", "unreachable",
]  # fmt: skip

LIVE = frozenset({"starting", "running", "standby", "hung", "stopping", "waiting"})
BAD_ENDS = frozenset({"failed", "lost", "unreachable"})
"""States that have a cause, which is looked for in the nodes' events."""
CAUSED: Mapping[CauseKind, tuple[RunState, str]] = {
    "exit": ("failed", "job"),
    "signal": ("failed", "job"),
    "launcher": ("failed", "job"),
    "supervisor": ("failed", "supervisor"),
    "start-timeout": ("failed", "start-timeout"),
    "world": ("failed", "world"),
    "hang": ("failed", "hang"),
    "before": ("failed", "before"),
    "node-lost": ("lost", "lost"),
}
"""Kind of the first cause → the run's state, and who ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What one node answered about a run."""

    node: Node
    node_run: NodeRun | None = None
    """None: it knows nothing of the run, or did not answer."""
    error: NodeError | None = None
    """Why it did not answer; None: it did."""
    left_out: LeftOut | None = None
    """The run continued without it; None: it takes part."""
    spare: bool = False
    """It stands by: nothing of it decides about the run."""
    waits: bool = False
    """The run waits for nodes."""

    @property
    def state(self) -> str:
        """The state of its part: NodeRun's, or one that it does not know itself.

        That is `left out`, `standby`, `hung`, `unreachable`, or `absent`.
        """
        if self.left_out and (self.node_run is None or self.node_run.state not in LIVE):
            return "left out"
        if self.error:
            return "unreachable"
        if self.node_run is None:
            return "absent"
        # Fields of their own: an earlier version takes a state that it does not know for an end.
        if self.node_run.state == "running" and self.node_run.standby:
            return "standby"
        if self.waits and self.node_run.state == "stopping":
            return "waiting"  # what it has to stop, it has stopped
        hung = self.node_run.hung is not None and self.node_run.state == "running"
        return "hung" if hung else self.node_run.state

    @property
    def rebooted(self) -> bool:
        """The machine was rebooted since: nothing of the run is left there."""
        return self.node_run is not None and self.node_run.rebooted

    @property
    def ranks(self) -> tuple[RankState, ...]:
        """Its ranks; none if it is left out: another node may have them."""
        return self.node_run.ranks if self.node_run and self.state != "left out" else ()

    @property
    def joined(self) -> int:
        """How many of its ranks are past the rendezvous."""
        return sum(rank.joined for rank in self.ranks)

    @property
    def end(self) -> NodeEnd | None:
        """How its part ended; None: it has not, as far as we know."""
        return self.node_run.end if self.node_run else None

    @property
    def cleared_up(self) -> bool:
        """It was lost, and a stop has cleared up later what was left of it."""
        return self.end is not None and self.end.reason.endswith((CLEARED, CLEARED_UP))

    def document(self) -> dict[str, Any]:
        """Return it as `status --json` shows a node."""
        known = self.node_run
        return {
            "node": self.node.name,
            "host": self.node.host,
            "state": self.state,
            "rank0": known.rank0 if known and self.state != "left out" else None,
            "ranks": len(self.ranks),
            "joined": self.joined,
            "supervisor": plain(known.supervisor) if known else None,
            "usage": plain(known.usage) if known else None,
            "end": plain(self.end),
            "left_out": plain(self.left_out),
            "message": str(self.error) if self.error else "",
            "hint": self.error.hint if self.error else "",
        }


class Aside(NamedTuple):
    """The nodes whose ends do not decide about a run."""

    spares: frozenset[str]
    """Those that stand by."""
    left_out: dict[str, LeftOut]
    """Those without which it continued."""


def master_of(node_runs: Iterable[NodeRun]) -> str:
    """Return the node of rank 0, as most nodes name it, or the first; empty: none names it."""
    named = Counter(one.master.node for one in node_runs if one.master).most_common(1)
    return named[0][0] if named else ""


def set_aside(node_runs: Mapping[str, NodeRun]) -> Aside:
    """Return who stands by and who is left out, as the master knows it.

    Nodes of an earlier version do not name it: then those of the newest attempt are believed.
    """
    master = master_of(node_runs.values())
    believed = {name: one for name, one in node_runs.items() if name == master or not master}
    newest = max((one.attempt for one in believed.values() if one.attempts > 1), default=0)
    known = [one for one in believed.values() if one.attempts > 1 and one.attempt == newest]
    soon = [
        LeftOut(node=node, attempt=newest, why=one.again.why)
        for one in known
        if one.again
        for node in one.again.without
    ]
    left_out = [*soon, *itertools.chain(*(one.left_out for one in known))]
    spares = {*itertools.chain(*(one.spares for one in known))}
    spares |= {name for name, one in node_runs.items() if one.standby and one.attempt == newest}
    return Aside(frozenset(spares), {one.node: one for one in left_out})


def state_of(answers: Sequence[NodeAnswer]) -> RunState:
    """Sum the nodes up: live while any part lives, else by what ended it.

    A failure of one node is the run's; success takes all nodes: what a node that does not
    answer would say is not known.
    """
    answers = staying(answers)
    states = {answer.state for answer in answers}
    unknown = "unreachable" in states and not _all_ranks_known(answers)
    if states & LIVE:
        return _live_state(states)
    if not any(answer.node_run for answer in answers):
        return "unreachable" if unknown else "lost"
    by = ended_by(answers)
    if by == "lost":
        return "lost"
    if by not in ORDERED and states & {"failed", "stopped", "lost"}:
        return "failed"
    if unknown:
        return "unreachable"
    return "stopped" if by in ORDERED else "finished"


def staying(answers: Sequence[NodeAnswer]) -> Sequence[NodeAnswer]:
    """Return the nodes with which a run continued, if they were enough; else all."""
    answers = [one for one in answers if not (one.left_out or one.spare)] or answers
    # All nodes of a run have the same: no single one makes it succeed without the others.
    least = min((one.node_run.min_nodes for one in answers if one.node_run), default=0)
    staying = [one for one in answers if one.state not in {"failed", "lost", "unreachable"}]
    return staying if 0 < least <= len(staying) else answers


def _all_ranks_known(answers: Sequence[NodeAnswer]) -> bool:
    """Tell whether the nodes that answer have all ranks: then the others were not used."""
    total = max((one.node_run.world_size for one in answers if one.node_run), default=0)
    return 0 < total <= sum(len(answer.ranks) for answer in answers)


def _live_state(states: set[str]) -> RunState:
    if "waiting" in states:
        return "waiting"
    if "stopping" in states or states & {"failed", "stopped"}:
        return "stopping"
    # Not whether ranks have joined: a job may have no rendezvous, and `joined` says it anyway.
    if "starting" in states:
        return "starting"
    return "hung" if "hung" in states else "running"


def ended_by(answers: Sequence[NodeAnswer]) -> str:
    """Name what ended a run: a rank of its own wins over what followed from that.

    Else what came first: a part that was lost may be stopped later, to clear up.
    """
    ends = [answer.end for answer in answers if answer.end]
    failed = any(end.state == "failed" for end in ends)
    if failed and any(end.by in {"rank", "launcher"} for end in ends):
        return "job"
    order = ("before", "world", "start-timeout", "hang", "max-time", "stop", "lost", "supervisor")
    known = [end for end in ends if end.by in order]
    if known:
        return min(known, key=lambda end: (end.time or 0.0, order.index(end.by))).by
    return "lost" if any(answer.state == "lost" for answer in answers) else "job"


def known_cause(cause: FirstCause, old: RecordedCause) -> FirstCause:
    """Return why a run failed, by what its nodes tell now and what was recorded of it before."""
    if old.kind != "node-lost":
        return cause
    sure = EACH_OTHER not in cause.message or EACH_OTHER in old.message
    same = old.node == cause.node and sure
    if same if cause.kind == "node-lost" else not is_secondary(cause.lines):
        return cause
    seen = FirstCause(node=old.node, time=cause.time, kind="node-lost", message=old.message)
    return replace(seen, remedy=old.remedy, also=old.also)
