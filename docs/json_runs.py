"""What verbs about runs print with `--json`, where the code builds it by hand, and their events."""
# ruff: noqa: INP001, D101  (for a script; what adds keys needs no words)

from __future__ import annotations

from typing import Any, NotRequired

from json_nodes import Document, NodeProblem, Plus
from typing_extensions import TypedDict

from clusterctl.checks.finding import Finding
from clusterctl.logs.first_cause import FirstCause
from clusterctl.logs.progress_line import JobProgress
from clusterctl.model.checkpoint import Checkpoint
from clusterctl.model.dump import NodeDump
from clusterctl.model.node_run import (
    Again,
    Fell,
    Hung,
    LastLine,
    LeftOut,
    NodeEnd,
    RankState,
    Straggler,
    Supervisor,
    Waits,
)
from clusterctl.model.quarantine import Quarantined
from clusterctl.model.usage import Usage
from clusterctl.model.verdict import Verdict
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.compare.comparison import Comparison
from clusterctl.verbs.compare.timeline import Moment
from clusterctl.verbs.events import Level
from clusterctl.verbs.join.result import NodeJoin
from clusterctl.verbs.runs.list_runs import ListedRun
from clusterctl.verbs.runs.prune import Kept
from clusterctl.verbs.runs.run_state import RunState
from clusterctl.verbs.stop import StopResult
from clusterctl.verbs.top.use import NodeNow


class Cause(Plus):
    base = FirstCause
    added = (("exit_status", int, "The exit code of `launch`."),)


class RunsDocument(Document):
    """The runs of the cluster, the newest first."""

    runs: list[ListedRun]
    """The runs."""
    troubles: list[NodeProblem]
    """Nodes that did not answer."""
    rebuilt: list[str]
    """Runs whose record `--discover` rebuilt."""


class PruneDocument(Document):
    """What `runs --prune` deleted."""

    removed: list[str]
    """Runs that were deleted."""
    kept: list[Kept]
    """Runs that were kept although they are old."""
    troubles: list[NodeProblem]
    """Nodes that did not answer."""


class StatusNode(TypedDict):
    """A node of the run, in launch order."""

    node: str
    """The node's name."""
    host: str
    """The host of the inventory."""
    state: str
    """[A state of a run](run-states.md), `standby`, `left out`, or `absent`."""
    rank0: int | None
    """The node's first rank."""
    ranks: int
    """The number of its ranks."""
    joined: int
    """How many of them have joined the rendezvous."""
    supervisor: Supervisor | None
    """clusterctl's process there."""
    usage: Usage | None
    """While the run lives on the node."""
    end: NodeEnd | None
    """Once the run has ended there."""
    left_out: LeftOut | None
    """That the run continued without it; null: it takes part, or stands by."""
    message: str
    """Why the node did not answer."""
    hint: str
    """What to do about it; may be empty."""


class StatusRank(Plus):
    base = RankState
    added = (("node", str, "The node's name."),)


class StatusStraggler(Plus):
    base = Straggler
    added = (("node", str, "The node's name."),)


class StatusFell(Plus):
    base = Fell
    added = (("node", str, "The node's name."),)


class TopNode(TypedDict):
    """A node of the run, in launch order."""

    node: str
    """The node's name."""
    state: str
    """As of `status`; `asked`: it has not answered yet."""
    message: str
    """Why the node does not answer."""
    use: NodeNow | None
    """By its newest sample; null: it has sent none."""


class TopDocument(Document):
    """A run at a moment."""

    run: str
    """The run's id."""
    cluster: str
    """The cluster."""
    name: str | None
    """The user's own name for the run."""
    time: float
    """By this machine's clock."""
    state: str
    """[A state of a run](run-states.md); `asked`: no node has answered yet."""
    progress: JobProgress | None
    """How far the job is, as it prints it; a rate that it does not print is measured."""
    printed_age_s: float | None
    """Seconds since the last output of any rank."""
    lines: list[str]
    """The last lines of the log that was written last."""
    checkpoint: Checkpoint | None
    """The newest complete checkpoint; it is looked for every 30 s."""
    checkpoint_age_s: float | None
    """Seconds since it was written."""
    hung: Hung | None
    """Since when no rank has shown a sign of life."""
    verdict: Verdict | None
    """Why the run stands still."""
    stragglers: list[StatusStraggler]
    """The ranks that keep the others waiting."""
    fell: list[StatusFell]
    """The nodes on which use fell and has not risen since."""
    nodes: list[TopNode]
    """Its nodes."""


class StatusDocument(Document):
    """A run; see [what the states mean](run-states.md)."""

    run: str
    """The run's id."""
    cluster: str
    """The cluster's name."""
    name: str | None
    """The name given by `--name`."""
    state: RunState
    """The state of the run."""
    ended_by: str | None
    """What ended it, as in [the exit codes of launch](launch.md#exit-codes)."""
    began: float | None
    """When it began."""
    ended: float | None
    """When it was over on all nodes."""
    command: list[str]
    """The job's command."""
    nodes: list[StatusNode]
    """Its nodes."""
    ranks: list[StatusRank]
    """Its ranks."""
    ray: dict[str, Any] | None
    """With the launcher `ray`: `address`, `version`, `nodes`."""
    slurm: dict[str, str] | None
    """In a batch job: `job`, `state`, `reason`, `nodes`."""
    last_line: LastLine | None
    """The newest line of the logs."""
    progress: JobProgress | None
    """How far the job is, by the newest line that tells."""
    restarts: int
    """How often the launcher has started its ranks again."""
    attempt: int
    """Which attempt of a run that restarts it is, or was the last; 1 of any other run."""
    attempts: int
    """The most that it may have."""
    restart_reason: str | None
    """Why the attempt before this one ended; null: this is the first."""
    again: Again | None
    """The attempt that is about to begin; null: there is none."""
    waits: Waits | None
    """null: it does not wait for nodes to join."""
    no_restart: str | None
    """Why a run that restarts was not started again."""
    time_left_s: float | None
    """Seconds until `job.max_time` stops it; null: it has no limit, or is over."""
    notify_problem: str | None
    """What a receiver of `job.notify` was not told, and why."""
    hung: Hung | None
    """That no rank has shown a sign of life for too long; null: it is not hung."""
    verdict: Verdict | None
    """Why, by the stacks that the nodes kept; also of a run that was ended for it."""
    false_alarms: int
    """How often it was hung, and then ran again."""
    stragglers: list[StatusStraggler]
    """The ranks that keep the others waiting, while the run is `running`."""
    alone: list[str]
    """The nodes whose ranks were not seen connected to another node: they may train alone."""
    fell: list[StatusFell]
    """The nodes on which the use of GPUs or CPUs fell and has not risen since."""
    quarantined: list[Quarantined]
    """Those of its nodes that are in quarantine on this machine."""
    checkpoints: str | None
    """The folder of this run's checkpoints, which was searched."""
    checkpoint: Checkpoint | None
    """The newest one that looks complete."""
    first_cause: Cause | None
    """Why the run failed."""


class RunDocument(Plus):
    """One run in full, from `runs show`."""

    base = ListedRun
    added = (
        ("schema", int, "Version of the document."),
        ("chain", list[str], "The runs that it resumes, itself and its resumes, oldest first."),
        ("launcher", str, "What starts its ranks; empty if this machine has no record of it."),
        ("source", str, "The folder that was synced."),
        ("tree", str, "Hash of what was synced."),
        ("options", dict[str, Any], "The options of the launch."),
        ("left_out", list[Quarantined], "Nodes that were left out as they are in quarantine."),
        ("findings", list[Finding], "Checks that did not pass before the launch."),
        ("record", str | None, "The folder of its record; null if there is none."),
        ("status", StatusDocument, "Its status, as `status --json` has it."),
    )


class CompareDocument(Plus):
    """Runs next to each other, from `runs compare`; `values` and `losses` are in their order."""

    base = Comparison
    added = (("schema", int, "Version of the document."),)


class MomentsDocument(Document):
    """What happened in a run, from `runs show --events`."""

    run: str
    """The run's id."""
    moments: list[Moment]
    """What happened, the earliest first."""


class StopDocument(Document):
    """What is left of each run that was stopped."""

    runs: list[StopResult]
    """The runs."""
    silent: list[str]
    """With `--all`: nodes that did not answer."""


class DumpDocument(Document):
    """Where every rank of a run is; of a run that is over, the stacks that its nodes kept."""

    run: str
    """The run's id."""
    time: float
    """When the nodes were asked, by this machine's clock."""
    nodes: list[NodeDump]
    """The nodes that told something."""
    states: dict[str, str]
    """The state of the run on each node that answered, by the node's name."""
    notes: dict[str, str]
    """What was not as it should be, by the node's name."""
    verdict: Verdict | None
    """Why the run stands still; null with `--rank` or `--nodes`, or if no node told anything."""
    silent: dict[str, str]
    """Why a node did not answer, by its name."""


class JoinDocument(Document):
    """`join`: which nodes joined a run."""

    run: str
    nodes: list[NodeJoin]


class LineEvent(TypedDict):
    """A line of a log."""

    run: NotRequired[str]
    """The run, with `logs --chain`."""
    time: float
    """When it was printed."""
    node: str
    """The node's name."""
    rank: int | None
    """null: the launcher printed it."""
    offset: int
    """Offset of its first byte in the file."""
    line: str
    """The line, without its newline."""


class StartedEvent(TypedDict):
    """The run is up on a node."""

    node: str
    """The node's name."""
    pid: int
    """The process id of the node's supervisor."""


class EventEvent(TypedDict):
    """A line of a node's [events.jsonl](run-folder.md#events)."""

    node: str
    """The node's name."""
    event: dict[str, Any]
    """The event."""


class VerdictEvent(TypedDict):
    """The run is hung: why, as `dump` says it; sent once for each time that it is."""

    run: str
    """The run's id."""
    time: float
    """When the nodes were asked, by this machine's clock."""
    states: dict[str, str]
    """The state of the run on each node that answered, by the node's name."""
    notes: dict[str, str]
    """What was not as it should be, by the node's name."""
    verdict: Verdict
    """Why the run stands still."""
    silent: dict[str, str]
    """Why a node did not answer, by its name."""


class LostEvent(TypedDict):
    """The connection to a node broke; clusterctl tries to reconnect."""

    node: str
    """The node's name."""
    message: str
    """Why it broke."""


class BackEvent(TypedDict):
    """A lost node answers again."""

    node: str
    """The node's name."""


class StoppingEvent(TypedDict):
    """A node has reached a stage of stopping."""

    node: str
    """The node's name."""
    stage: str
    """`asking`, `killing` or `verifying` (that nothing is left)."""


class CheckpointEvent(TypedDict):
    """`resume` has verified a checkpoint."""

    chosen: ChosenCheckpoint
    """The checkpoint."""


class MessageEvent(TypedDict):
    """A notice or a warning."""

    level: Level
    """How serious it is."""
    node: str | None
    """The node's name; null if the message is not about one node."""
    text: str
    """The message."""
    hint: str
    """What to type or to do next; may be empty."""


class EndedEvent(TypedDict):
    """How the run ended; always the last event."""

    run: str | None
    """The run's id; null: nothing was launched."""
    state: RunState | None
    """The state of the run; null: nothing was launched."""
    exit_code: int
    """The exit code of the command."""
    ended_by: str
    """What ended the run, as in [the exit codes of launch](launch.md#exit-codes)."""
    first_cause: NotRequired[FirstCause | None]
    """Why the run failed."""
    false_alarms: NotRequired[int]
    """How often it was hung, and then ran again."""
    quarantined: NotRequired[list[Quarantined]]
    """Those of its nodes that are in quarantine on this machine."""
    message: NotRequired[str]
    """Why nothing was launched."""


class DetachedDocument(Document):
    """The last line of `launch --detach`."""

    run: str
    """The run's id."""
