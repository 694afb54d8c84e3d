"""What all nodes' answers about a run amount to: its state, its nodes, its ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.first_cause import FirstCause
from clusterctl.logs.progress_line import JobProgress, progress_of, with_rate, with_total_of
from clusterctl.model.checkpoint import Checkpoint
from clusterctl.model.node_run import (
    Again,
    Fell,
    Hung,
    LastLine,
    LastPrinted,
    NodeRun,
    RayCluster,
    Resumed,
    Step,
    Straggler,
    Waits,
)
from clusterctl.model.quarantine import Quarantined
from clusterctl.model.run_record import RunEnd
from clusterctl.model.verdict import Verdict
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass
from clusterctl.verbs.runs.run_state import (
    BAD_ENDS,
    CAUSED,
    LIVE,
    NodeAnswer,
    RunState,
    ended_by,
    known_cause,
    set_aside,
    state_of,
    staying,
)
from clusterctl.wire import SCHEMA, plain

_START_SECONDS = 15.0
"""A launch asks the workers as soon as the master has started."""
_TOLD = (
    "run", "cluster", "state", "began", "ended", "command", "ray", "slurm", "last_line", "restarts",
    "attempt", "attempts", "again", "waits", "time_left_s", "hung", "verdict", "false_alarms",
    "alone", "quarantined", "checkpoint",
)  # fmt: skip
_TOLD_IF_ANY = (
    "name", "ended_by", "restart_reason", "no_restart", "notify_problem", "checkpoints",
)  # fmt: skip
"""What `status --json` prints under its own name; of these null, if it is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as `status` shows it."""

    run: str
    cluster: str
    nodes: tuple[NodeAnswer, ...]
    """In launch order."""
    checkpoints: str = ""
    """The folder that was searched for the newest checkpoint; empty: none was searched."""
    checkpoint: Checkpoint | None = None
    first_cause: FirstCause | None = None
    verdict: Verdict | None = None
    """Why it stands still, or did when it was ended for that; None: its nodes do not tell."""
    command: tuple[str, ...] = ()
    """To be shown only: if this machine does not know it, the first node's claim."""
    name: str = ""
    """The user's own name for it."""
    began: float | None = None
    remembered: RunEnd | None = None
    """How it ended, as this machine saw it; counts if no node knows, or not every node answers."""
    slurm: Mapping[str, Any] | None = None
    """Of a run in a Slurm job: `job`, `state`, `reason`, `nodes`; None: it is in none."""
    quarantined: tuple[Quarantined, ...] = ()
    """Those of its nodes that are in quarantine on this machine."""

    @property
    def title(self) -> str:
        """Its id, with the user's own name for it."""
        return f"{self.run} ({self.name})" if self.name else self.run

    @property
    def master(self) -> NodeRun | None:
        """What its master knows: only that node is believed what it tells of the whole run."""
        return self.nodes[0].node_run if self.nodes else None

    @property
    def node_runs(self) -> dict[str, NodeRun]:
        """What the nodes know of it, by node; without those that know nothing."""
        return {node.node.name: node.node_run for node in self.nodes if node.node_run}

    @property
    def known(self) -> bool:
        """Some node knows of it."""
        return bool(self.node_runs)

    @property
    def state(self) -> RunState:
        """The run's state; the first cause decides if several nodes ended it, each its own way."""
        if self._memory:
            return cast("RunState", self._memory.state or "lost")
        state = state_of(self.nodes)
        if self.first_cause is not None and state in BAD_ENDS:
            return CAUSED[self.first_cause.kind][0]
        return state

    @property
    def _memory(self) -> RunEnd | None:
        """How it ended as remembered, if the nodes do not tell."""
        end = self.remembered
        if end is None or end.state == "unreachable":
            return None
        return end if not self.known or state_of(self.nodes) == "unreachable" else None

    @property
    def contested(self) -> bool:
        """It failed, and only the nodes' events can tell which of several ends came first."""
        ends = [answer.end.by if answer.end else "" for answer in staying(self.nodes)]
        own = [by for by in ends if by != "peer"]
        return self.known and self.state in BAD_ENDS and (len(own) != 1 or "" in own)

    @property
    def live(self) -> bool:
        """Something of it is still there, as far as we know."""
        return any(node.state in LIVE for node in self.nodes)

    @property
    def ended(self) -> float | None:
        """When its last part was over; None while it lives, or if that is not known."""
        ends = [node.end for node in staying(self.nodes) if node.end]
        times = [float(end.over or end.time or 0.0) for end in ends]
        over = not self.live and self.state not in {"unreachable", "lost"}
        return max(times, default=0.0) or None if over else None

    @property
    def last_line(self) -> LastLine | None:
        """What was printed last, on any node."""
        lines = [
            LastLine(node=n, rank=one.rank, line=one.line, age_s=one.age_s, every_s=one.every_s)
            for n, one in self._last.items()
        ]
        return min(lines, key=lambda line: (line.rank is None, line.age_s), default=None)

    @property
    def progress(self) -> Step | None:
        """How far it is; None: no rank has said. The node of the first ranks counts."""
        ordered = sorted(self.node_runs.values(), key=lambda one: one.rank0 or 0)
        return next((one.progress for one in ordered if one.progress), None)

    @property
    def resumed(self) -> Resumed | None:
        """What it was resumed from, as a node says; None: nothing."""
        return next((one.resumed for one in self.node_runs.values() if one.resumed), None)

    @property
    def _last(self) -> dict[str, LastPrinted]:
        """What each node printed last, by node."""
        return {name: one.last for name, one in self.node_runs.items() if one.last}

    @property
    def pace(self) -> JobProgress | None:
        """How far it is and how fast, by the newest line that tells; None: none does.

        After a failure the last lines are tracebacks: then the first rank's last step counts.
        """
        step = self.progress or Step()
        for last in sorted(self._last.values(), key=lambda last: last.age_s):
            found = _pace_of(last)
            if found is not None:
                if found.step is None:
                    found = replace(found, step=step.step, total=step.total)
                found = with_total_of(self.command, found)
                found = replace(found, eta_s=self._time_left(found, last))
                return replace(found, loss=step.loss, tokens_per_s=step.tokens_per_s)
        return JobProgress(**plain(step)) if step != Step() else None

    def _time_left(self, found: JobProgress, last: LastPrinted) -> float | None:
        """Return the seconds to the last step; None: not known, or the run rests now."""
        if found.eta_s is None or not self.live or self.waits or self.again or self.hung:
            return None
        # A step, or the usual time between two lines, may have passed since; no more, if it rests.
        usual = max(last.every_s or 0.0, 1 / found.steps_per_s if found.steps_per_s else 0.0)
        return max(0.0, found.eta_s - min(last.age_s, usual or last.age_s))

    @property
    def restarts(self) -> int:
        """How often the launcher has started its ranks again."""
        return max((rank.restarts for node in self.nodes for rank in node.ranks), default=0)

    @property
    def hung(self) -> Hung | None:
        """Since when no rank has shown a sign of life; None: it is not hung."""
        found = [one.hung for one in self.node_runs.values() if one.hung]
        return found[0] if found and self.state == "hung" else None

    @property
    def stacks_kept(self) -> bool:
        """Its nodes kept stacks as a rank had waited in vain for another."""
        return any(answer.end is not None and answer.end.stacks for answer in self.nodes)

    @property
    def attempt(self) -> int:
        """Which attempt of a run that restarts it is, or was the last one; 1 of any other run."""
        parts = (one.attempt for one in self.node_runs.values() if one.attempts > 1)
        return max(parts, default=1)

    @property
    def attempts(self) -> int:
        """The most that it may have."""
        return max((one.attempts for one in self.node_runs.values()), default=1)

    @property
    def restart_reason(self) -> str:
        """Why the attempt before this one ended; empty: this is the first one."""
        found = [one for one in self.node_runs.values() if one.attempts > 1]
        newest = max(found, key=lambda one: one.attempt, default=None)
        return newest.restart_reason if newest else ""

    @property
    def again(self) -> Again | None:
        """The attempt that is about to begin; None: there is none."""
        return next((one.again for one in self.node_runs.values() if one.again), None)

    @property
    def waits(self) -> Waits | None:
        """Until when it waits for nodes to join; None: it does not."""
        return self.master.waits if self.master and self.live else None

    @property
    def no_restart(self) -> str:
        """Why a run that restarts was not started again; the master decided."""
        found = (one.end.no_restart for one in staying(self.nodes) if one.end)
        gone = self.attempts > 1 and self.state == "lost"
        return next(filter(None, found), "no supervisor is left that would do it" if gone else "")

    @property
    def notify_problem(self) -> str:
        """What was not told to a receiver of `job.notify`; empty: nothing, as far as known."""
        return self.master.notify_problem if self.master else ""

    @property
    def time_left_s(self) -> float | None:
        """Seconds until its time limit stops it; None: it has none, or is over."""
        return self.master.time_left_s if self.master and self.live else None

    @property
    def false_alarms(self) -> int:
        """How often it was hung, and then ran again."""
        return max((one.false_alarms for one in self.node_runs.values()), default=0)

    @property
    def stragglers(self) -> tuple[tuple[str, Straggler], ...]:
        """The ranks that keep the others waiting, with their nodes."""
        known = self.node_runs.items() if self.state == "running" else ()
        return tuple((node, one) for node, run in known for one in run.stragglers)

    @property
    def alone(self) -> tuple[str, ...]:
        """The nodes whose ranks were not seen connected to another node's.

        At the end, all must tell it: a node may have met another one too briefly to be seen.
        """
        told = {node: run.alone for node, run in self.node_runs.items() if run.ranks}
        every = all(told.values())
        return tuple(node for node, how in told.items() if how == "trains-alone" or (how and every))

    @property
    def fell(self) -> tuple[tuple[str, Fell], ...]:
        """The nodes on which use fell and has not risen since, the first one first."""
        known = self.node_runs.items() if self.state == "running" else ()
        found = ((node, run.fell) for node, run in known if run.fell)
        return tuple(sorted(found, key=lambda each: each[1].since))

    @property
    def ray(self) -> RayCluster | None:
        """Its own Ray cluster when all nodes had joined."""
        return next((one.ray for one in self.node_runs.values() if one.ray), None)

    def never_begun(self, now: float) -> tuple[str, ...]:
        """The nodes that have nothing of a run that is starting, seconds after it began elsewhere.

        Their `env_init` runs, or the launch was killed before it reached them.
        """
        late = self.state == "starting" and self.began and now - self.began > _START_SECONDS
        return tuple(one.node.name for one in self.nodes if late and one.state == "absent")

    @property
    def silent(self) -> tuple[NodeAnswer, ...]:
        """The nodes that did not answer, without those that are left out."""
        return tuple(node for node in self.nodes if node.error and not node.left_out)

    @property
    def ended_by(self) -> str:
        """Who ended it: as `status --json` has it; empty while it runs, or if unknown."""
        if self._memory:
            return self._memory.ended_by
        if self.live or not self.known or self.state == "unreachable":
            return ""
        if self.first_cause is not None and self.state in BAD_ENDS:
            return CAUSED[self.first_cause.kind][1]
        return ended_by(staying(self.nodes))

    def __str__(self) -> str:
        """Return its state and its first cause in a line, safe to print."""
        ended = f" (ended by {self.ended_by})" if self.ended_by else ""
        cause, why = self.first_cause, ""
        if cause:
            where = cause.node if cause.rank is None else f"{cause.node}, rank {cause.rank}"
            why = f"; first cause: {where}: {cause.message}"
        return strip_controls(f"{self.run}: {self.state}{ended}{why}")

    def with_remembered(self, end: RunEnd | None) -> RunStatus:
        """Add the recorded end; of nodes that lost each other, it tells which was cut off."""
        cause, old = self.first_cause, end.first_cause if end else None
        if cause and old:
            cause = known_cause(cause, old)
        return replace(self, remembered=end, first_cause=cause)

    def document(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        ranks = [
            {**plain(rank), "node": answer.node.name}
            for answer in self.nodes
            for rank in answer.ranks
        ]
        cause = plain(self.first_cause)
        if cause:
            cause["exit_status"] = self.first_cause.exit_status if self.first_cause else None
        return {
            "schema": SCHEMA,
            **{name: plain(getattr(self, name)) for name in _TOLD},
            **{name: getattr(self, name) or None for name in _TOLD_IF_ANY},
            "nodes": [answer.document() for answer in self.nodes],
            "ranks": sorted(ranks, key=lambda rank: int(rank["rank"])),
            "progress": plain(self.pace),
            "stragglers": [{**plain(one), "node": node} for node, one in self.stragglers],
            "fell": [{**plain(one), "node": node} for node, one in self.fell],
            "first_cause": cause,
        }


def view_of(
    run: str,
    cluster: Cluster,
    node_runs: Mapping[str, NodeRun],
    errors: Mapping[str, NodeError],
) -> RunStatus:
    """Put together what each node knows of a run."""
    began = [one.began for one in node_runs.values() if one.began]
    aside = set_aside({n.name: node_runs[n.name] for n in cluster.nodes if n.name in node_runs})
    name = next((one.name for one in node_runs.values() if one.name), "")
    master = node_runs.get(cluster.nodes[0].name) if cluster.nodes else None
    claims = (node_runs[node.name].command for node in cluster.nodes if node.name in node_runs)
    return RunStatus(
        run=run,
        cluster=cluster.name,
        nodes=tuple(
            NodeAnswer(
                node=node,
                node_run=node_runs.get(node.name),
                error=errors.get(node.name),
                left_out=aside.left_out.get(node.name),
                spare=node.name in aside.spares,
                waits=master is not None and master.waits is not None,
            )
            for node in cluster.nodes
        ),
        command=cluster.job.command or next(filter(None, claims), ()),
        name=name,
        began=min(began, default=None),
    )


def _pace_of(last: LastPrinted) -> JobProgress | None:
    """Return how far and how fast the last lines say that it is; the job's own patterns first."""
    earlier, own = last.earlier, last.own
    seconds = earlier.age_s - last.age_s if earlier else 0.0
    if own is None or own.step is None:
        return progress_of(last.lines or [last.line], earlier.lines if earlier else (), seconds)
    before = (earlier.own if earlier else None) or Step()
    now, then = (JobProgress(step=one.step, total=one.total) for one in (own, before))
    return with_rate(now, then, seconds)
