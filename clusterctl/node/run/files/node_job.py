"""The job of one node: what the controller sends with `start`, and the node keeps as `job.json`."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, TypedDict

PLACEHOLDER, STEP_PLACEHOLDER = "{checkpoint}", "{checkpoint_step}"
"""In a command, where the path of a checkpoint goes, and its step."""


class StopRequest(TypedDict):
    """How ranks are asked to end; times in seconds."""

    signal: Optional[str]
    file: Optional[str]
    grace: float
    failure_grace: float
    leftovers: float


class HangLimits(TypedDict):
    """When a run without a sign of life is hung."""

    after: float
    """Seconds; 0: never."""
    action: str
    """report, stop or restart."""


class Restart(TypedDict):
    """When the supervisors start the run again after a failure."""

    max: int
    """Most restarts; 0: none."""
    on: Dict[str, Any]
    never: Dict[str, Any]
    min_nodes: int
    """With so many nodes the run continues if some are left out and no spare is left; 0: never."""
    wait: float
    """Seconds to wait for nodes that join, if too few are left."""
    resumed_argv: List[str]
    """The rank's command from a checkpoint, with a placeholder for it; empty: there is none."""


class Receiver(TypedDict):
    """Who gets messages about the run: a command, or a URL by the name of its variable."""

    on: List[str]
    every: Optional[float]
    command: List[str]
    webhook_from: Optional[str]


class Seat(TypedDict):
    """A node that may have ranks."""

    node: str
    address: str
    procs: int


class MasterDecision(TypedDict):
    """What began the attempt, as the master decided; see `parse_again`."""

    attempt: int
    checkpoint: Optional[str]
    step: Optional[int]
    wait_s: float
    why: str
    go: bool
    without: List[str]
    """The nodes that are left out from now on, spares too."""
    joined: List[Seat]
    """The nodes that have joined since the attempt before began."""


class LineupInput(TypedDict):
    """What a run that may continue on other nodes is planned again by."""

    seats: List[Seat]
    """All nodes of the launch, spares last, then those that joined."""
    launch: Dict[str, Any]
    """The `LaunchContext` of this node."""


class LeftOut(TypedDict):
    """A node without which the run continued."""

    node: str
    attempt: int
    """The last one that it took part in."""
    why: str
    spare: str
    """The node that has its place; empty: none."""


class MasterAddress(TypedDict):
    """Where the ranks meet."""

    node: str
    address: str
    port: int


class PeerLinkAddress(TypedDict):
    """Where the supervisors meet."""

    address: str
    port: int
    """0 for the master itself, until it listens."""
    certificate: str
    lost_after: float


class Elastic(TypedDict):
    """How far an elastic run may grow."""

    max_nodes: int


class AddedByNode(TypedDict, total=False):
    """What the node adds."""

    user: str
    attempt: int
    """Which part of the run the node has, from 1: one that was lost may join again.

    Of a run that restarts, the attempt; the same on every node.
    """
    again: MasterDecision
    """Of a further attempt: why it began, and from where."""
    began: float
    """Of a further attempt: when the first one did."""
    left_out: List[LeftOut]
    """Of a further attempt: the nodes that no longer take part, the first ones first."""
    empty: List[int]
    """Of a further attempt: the ranks of each place that no node has."""
    shrunk: bool
    """Its checkpoints may be of attempts with another number of ranks."""
    planned_argv: List[str]
    """Of a further attempt: the command of the first one."""
    env_init_s: float
    """How long `env_init` took here."""
    env_init_said: str
    """The last line that it printed."""
    boot_id: str
    up: float
    """When the run was started here, in seconds since boot."""
    force: bool
    """Of `--force`: ranks that meet elsewhere than planned do not end the run."""
    workdir_id: str
    """By which other users can tell whether the run works in their folder."""
    cgroup: str


class NodePart(TypedDict):
    """What of a node's job no other node has."""

    node: str
    state: Optional[str]
    """The inventory's folder for state; None: the default one."""
    node_rank: int
    launcher_argv: List[str]
    """Empty: the supervisor starts the ranks."""
    launcher_program: str
    """The function of the agent that starts the launcher and the ranks; empty: we start it."""
    ends_with_master: bool
    """A worker's processes serve the master's: they end once it is over there, not before."""
    argv: List[str]
    wrap: List[str]
    """In front of each rank's command."""
    container: List[str]
    """In front of the launcher, or of each rank that we start: it starts a container."""
    python: str
    """The job's interpreter; of a container, the one inside."""
    procs: int
    device: str
    first_rank: int
    workdir: str
    path_first: Optional[str]
    env: List[List[str]]
    """Name, value and layer of each variable."""
    address: str
    interface: str
    lock: str


class NodeJob(AddedByNode, NodePart):
    """What is started on one node; it holds no secret."""

    schema: int
    run: str
    cluster: str
    name: Optional[str]
    controller: str
    checkpoints: str
    """The folder that the run writes its checkpoints to, from workdir; empty if unknown."""
    resumed: Optional[Dict[str, Any]]
    """Of a resume, the run and the checkpoint that it resumes from."""
    launched: Dict[str, str]
    """The record of the launch, with a proof that only its controller can check."""
    nnodes: int
    launcher: str
    launcher_decides: bool
    hostfile: str
    """The content of the file that CLUSTERCTL_HOSTFILE names."""
    elastic: Optional[Elastic]
    """None: the number of nodes is fixed."""
    joined: bool
    """The node joins a run that is under way."""
    min_nodes: int
    """The run continues while so many nodes are left; 0: it needs all of them."""
    world_size: int
    env_init: Optional[str]
    stop: StopRequest
    hang: HangLimits
    progress: List[str]
    """Patterns that find how far it is in what it prints."""
    restart: Optional[Restart]
    """None: a failure is the end of the run."""
    lineup: Optional[LineupInput]
    """None: every attempt has the same nodes."""
    spares: List[str]
    """Those of `workers` that stand by and have no rank."""
    standby: bool
    """This node is one of them."""
    master: MasterAddress
    workers: List[str]
    """All nodes with a supervisor but the master, spares last."""
    link: PeerLinkAddress
    start_timeout: float
    before: Optional[str]
    """A shell line before the ranks of each attempt."""
    after: Optional[str]
    """A shell line once all ranks have ended for good."""
    before_after_timeout: float
    notify: List[Receiver]
    """Told by the master."""
    max_time: Optional[float]
    """Seconds from `up` on the master; None or 0: the run may last."""


def may_restart(job: NodeJob) -> bool:
    """Tell whether the supervisors start the run again after a failure."""
    restart = job.get("restart")
    # An elastic run continues without a node; its nodes have attempts of their own.
    return bool(restart and restart["max"] > 0 and not job.get("elastic"))


def most_attempts(job: NodeJob) -> int:
    """Return how many attempts the run may have."""
    restart = job.get("restart")
    return restart["max"] + 1 if restart else 1


def run_attempt(job: NodeJob) -> int:
    """Return which attempt of the whole run this is, from 1; 0: the run has only one."""
    return job.get("attempt", 1) if may_restart(job) else 0


def has_checkpoint(words: Iterable[str]) -> bool:
    """Tell whether a command has a place for a checkpoint."""
    return any(PLACEHOLDER in word or STEP_PLACEHOLDER in word for word in words)


def from_checkpoint(words: Iterable[str], path: str, step: Optional[int]) -> List[str]:
    """Return a command with the checkpoint in its places; without a step, that place stays."""
    number = STEP_PLACEHOLDER if step is None else str(step)
    return [word.replace(STEP_PLACEHOLDER, number).replace(PLACEHOLDER, path) for word in words]


def start_of(job: NodeJob, again: Mapping[str, Any]) -> Tuple[Optional[str], Optional[int]]:
    """Return the checkpoint, and its step, that an attempt begins from; None: the beginning.

    Without one of its own it runs the command of the launch, which a resume gave a checkpoint.
    """
    start = again if again["checkpoint"] is not None else job.get("resumed") or {}
    return start.get("checkpoint"), start.get("step")


def next_job(job: NodeJob, again: MasterDecision, *, began: float, link_port: int) -> NodeJob:
    """Return the job of the next attempt; its command is made of words that the plan sent."""
    restart = job.get("restart")
    planned = job.get("planned_argv") or job["argv"]
    argv, checkpoint = planned, again["checkpoint"]
    if checkpoint is not None and restart and restart["resumed_argv"]:
        argv = from_checkpoint(restart["resumed_argv"], checkpoint, again["step"])
    link: PeerLinkAddress = {**job["link"], "port": link_port or job["link"]["port"]}
    return {
        **job,
        "argv": argv,
        "planned_argv": planned,
        "link": link,
        "began": began,
        "attempt": again["attempt"],
        "again": again,
    }
