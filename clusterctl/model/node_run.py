"""A run on one node, as the node answers; what is absent is unknown, or of an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from clusterctl.model.from_json import (
    Amount,
    Bounds,
    Count,
    ExitCode,
    Pid,
    Port,
    Rank,
    Seconds,
    Signal,
    Whole,
)
from clusterctl.model.usage import Usage
from clusterctl.values import dataclass

SUPERVISOR_DIED = "its supervisor died"
"""Why a node is lost whose machine has been up all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank."""

    rank: Rank
    """The global rank."""
    local_rank: Rank = 0
    """The rank within its node."""
    restarts: Count = 0
    """How often the launcher has restarted its ranks."""
    state: str = ""
    """The state of its process: `starting`, `running` or `ended`."""
    pid: Pid | None = None
    """Its process id."""
    exit_code: ExitCode | None = None
    """128 + n after signal n; null if it is not known."""
    signal: Signal | None = None
    """The signal that ended it."""
    began: Seconds | None = None
    """When it was started."""
    ended: Seconds | None = None
    """When it ended."""
    joined: bool = False
    """It is past the rendezvous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """clusterctl's own process on a node."""

    pid: Pid | None = None
    """Its process id."""
    alive: bool = False
    """It is running."""
    beat_age_s: Seconds | None = None
    """Seconds since it was last alive."""
    rebooted: bool = False
    """The machine was rebooted since the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How the run ended on a node."""

    state: str = ""
    """`finished`, `failed`, `stopped` or `lost`."""
    reason: str = ""
    """Why, in words."""
    exit_code: ExitCode | None = None
    """Of the rank or launcher that ended it there."""
    by: str = ""
    """What ended it; see [end.json](run-folder.md#endjson)."""
    time: Seconds | None = None
    """When the end began."""
    no_restart: str = ""
    """Of a run that restarts: why it was not started again."""
    run_exit_code: ExitCode | None = None
    """Of a run that restarts brought no further: what `launch` exits with."""
    over: Seconds | None = None
    """When nothing of the run was left on the node; null if it was of an earlier version."""
    stacks: bool = False
    """Its ranks' stacks were kept, as one of the run had waited in vain for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """Where the ranks meet."""

    node: str = ""
    address: str = ""
    port: Port | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a run was resumed from."""

    run: str = ""
    checkpoint: str = ""
    command: tuple[str, ...] = ()
    """With a placeholder for the checkpoint."""
    step: Whole | None = None
    tree: str | None = None
    """Hash of the code of the run before."""
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a launch left on a node of its record, and the proof that it did."""

    record: str = ""
    proof: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node of a Ray cluster."""

    node: str
    address: str
    cpus: Amount
    gpus: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A run's own Ray cluster when all nodes had joined."""

    address: str
    version: str
    nodes: tuple[RayNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """That no rank of the run has shown a sign of life for too long."""

    since: Seconds
    """When the last one did, by the node's clock."""
    quiet_s: Seconds
    """How long that was when the run was judged hung."""
    alarm: Count = 0
    """Which such judgement it is: from 1, in attempt 2 of the run from 1001, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that keeps the others waiting, in a run that continues."""

    rank: Rank
    """The global rank."""
    since: Seconds
    """When that began, by the node's clock."""
    lost_percent: Count
    """The share of the time that the others lose to it."""
    reason: str = ""
    """What slows it down on its node, in words."""
    where: str = ""
    """A line of its code at which it was then; empty: no stack could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fell:
    """Use that fell on a node, and has not risen since."""

    what: str = "GPU"
    """`GPU`, or `rank`: CPU time, where no GPU is."""
    numbers: tuple[Count, ...] = ()
    """The GPUs, or ranks."""
    since: Seconds
    """When the first one fell, by the node's clock."""
    before: Amount
    """Its usual percent until then."""
    now: Amount
    """Its percent since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """That a run which failed is about to start again."""

    attempt: Count
    """The number of the attempt that begins."""
    checkpoint: str | None = None
    """What it begins from; null: the beginning."""
    step: Whole | None = None
    """The checkpoint's."""
    at: Seconds
    """When, by the node's clock."""
    why: str = ""
    """Why the attempt before ended."""
    without: tuple[str, ...] = ()
    """The nodes that do not take part any longer, spares too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A run that lacks nodes, and waits for others to join."""

    since: Seconds
    """Since when, by the master's clock."""
    until: Seconds
    """When it ends if none has joined."""
    why: str
    """Why it lacks nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A node without which a run continued."""

    node: str
    """Its name."""
    attempt: Count
    """The last attempt that it took part in."""
    why: str = ""
    """Why it was left out."""
    spare: str = ""
    """The node that took its place; empty: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """Why a node was blamed for the end of an attempt, in a run that restarts."""

    why: str
    """What is wrong with it, in words."""
    time: Seconds
    """When, by the master's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a rank was, as it printed."""

    step: Count | None = None
    total: Count | None = None
    loss: Amount | None = None
    tokens_per_s: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLines:
    """What were the last lines of a log some time ago."""

    lines: tuple[str, ...]
    age_s: Seconds
    own: Step | None = None
    """What the job's own patterns found in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPrinted:
    """What the log that was written last ends with."""

    rank: Rank | None = None
    """null: a launcher printed it."""
    line: str
    age_s: Seconds
    every_s: Seconds | None = None
    """The usual time from one line to the next; null: they are too few."""
    lines: tuple[str, ...] = ()
    own: Step | None = None
    """What the job's own patterns find in them."""
    earlier: EarlierLines | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLine:
    """The newest line of the logs, from any node."""

    node: str
    """The node's name."""
    rank: int | None
    """null: a launcher printed it."""
    line: str
    """The line."""
    age_s: float
    """Seconds since it was printed."""
    every_s: float | None
    """The usual seconds from one line of that log to the next; null if they are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """A run on one node."""

    run: str
    state: str
    ranks: tuple[RankState, ...]
    workdir: str = ""
    checkpoints: str = ""
    """Where the job writes them; empty: it does not say."""
    master: Master | None = None
    rank0: Rank | None = None
    """The node's first rank."""
    name: str = ""
    """The user's own name for the run."""
    command: tuple[str, ...] = ()
    launcher_joined: bool | None = None
    """Whether the launcher reached the master; null: it has no rendezvous, or did not say."""
    alone: str = ""
    """`trains-alone` or `never-met`: no rank was seen connected to another node."""
    world_size: Rank = 0
    """0: unknown."""
    min_nodes: Count = 0
    """Of an elastic run: with so many nodes it continues."""
    resumed: Resumed | None = None
    nodes: tuple[str, ...] = ()
    """All nodes of the run, as the master knows them."""
    supervisor: Supervisor | None = None
    end: NodeEnd | None = None
    """null: it has not ended, as far as the node knows."""
    began: Seconds | None = None
    ray: RayCluster | None = None
    progress: Step | None = None
    last: LastPrinted | None = None
    usage: Usage | None = None
    """While the run lives."""
    launched: Launched | None = None
    hung: Hung | None = None
    """null: it is not, or this is unknown."""
    false_alarms: Count = 0
    """How often it was hung, and then ran again."""
    stragglers: Annotated[tuple[Straggler, ...], Bounds(0, 1024)] = ()
    fell: Fell | None = None
    """null: nothing fell, or this is unknown."""
    attempt: Count = 1
    """Which of the attempts of a run that restarts; of a node that joined again, its part."""
    attempts: Count = 1
    """The most that the run may have."""
    restart_reason: str = ""
    """Of a further attempt: why the one before ended."""
    again: Again | None = None
    """null: no attempt is about to begin."""
    waits: Waits | None = None
    """On the master: the run waits for nodes to join; null: it does not."""
    blamed: Mapping[str, Blamed] = field(default_factory=dict)
    """On the master: the nodes that were blamed between two attempts."""
    notify_problem: str = ""
    """What a receiver of `job.notify` was not told, and why; the first time."""
    time_left_s: Seconds | None = None
    """Of a live run with a time limit, on the master."""
    standby: bool = False
    """A spare node that has no rank yet."""
    spares: tuple[str, ...] = ()
    """The nodes that stand by, as the node knows them."""
    left_out: tuple[LeftOut, ...] = ()
    """The nodes that do not take part any longer, as the node knows them."""

    @property
    def why_gone(self) -> str:
        """Why no supervisor recorded an end; empty: one did."""
        if self.state != "lost":
            return ""
        return "the machine was rebooted" if self.rebooted else SUPERVISOR_DIED

    @property
    def rebooted(self) -> bool:
        """The machine was rebooted since: nothing of the run is left there."""
        return self.supervisor is not None and self.supervisor.rebooted
