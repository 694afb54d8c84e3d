"""The values of an inventory: a cluster, its nodes, the job, with all defaults applied."""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import Literal, get_args

from clusterctl.inventory import kinds
from clusterctl.inventory.settings import setting
from clusterctl.values import dataclass

Via = Literal["paramiko", "openssh", "srun"]
LauncherName = Literal["torchrun", "direct", "accelerate", "ray", "slurm"]
"""Each is a file of `plan/launchers/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How nodes are reached; ssh_config decides what is left out."""

    user: str | None = setting(kinds.USER, "the user to log in as")
    port: int | None = setting(kinds.PORT, "the port of sshd")
    identity: str | None = setting(
        kinds.LOCAL_PATH, "a private key on this machine; relative to the inventory's folder"
    )
    jump: str | None = setting(
        kinds.JUMP, "a jump host, as [user@]host[:port]; none overrides ssh_config"
    )
    via: Via = setting(
        kinds.one_of(*get_args(Via)),
        "paramiko; openssh: the system's ssh program; srun: a step of a Slurm job",
        "paramiko",
    )
    slurm_job: str | None = None
    """For `via: srun`, the id of the allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the inventory, its defaults applied."""

    host: str
    """As written in the inventory (a range's member): how SSH reaches it and how we name it."""
    name: str
    """Unique in the cluster and safe as a file name: the inventory's `name`, else the host, with
    `_PORT` if two share it."""
    ssh: Ssh
    gpus: int | None = None
    """GPUs to use; None: all that are found; 0: CPU processes."""
    gpus_limit: int | None = None
    """GPUs to use at most, by the command line; None: no limit."""
    procs: int | None = None
    """Processes if gpus is 0 (default 1)."""
    python: str | None = None
    """The job's interpreter on this node; None: python3 of a non-interactive shell."""
    workdir: str | None = None
    address: str | None = None
    """Address on the data network; None: found."""
    state: str | None = None
    """The folder of node state, instead of /var/tmp/clusterctl-$UID."""
    local: bool = False
    """This machine itself, which needs no SSH; `ssh` has no values."""
    source: str = ""
    """`file:line` of its entry."""
    spare: bool = False
    """It has no rank until it takes the place of a node that a restart leaves out."""

    @property
    def gpus_wanted(self) -> int | None:
        """GPUs that a run needs here; None: all that are found, up to `gpus_limit`."""
        if self.gpus_limit == 0:
            return 0
        if self.gpus is None or self.gpus_limit is None:
            return self.gpus
        return min(self.gpus, self.gpus_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """How the ranks are asked to end."""

    signal: str | None = setting(kinds.SIGNAL, "a signal to send; TERM if absent", "TERM")
    """The signal to send; None: `file` is made instead."""
    file: str | None = setting(
        kinds.INSIDE_PATH, "a file to make in workdir instead", instead_of="signal"
    )
    grace: float = setting(kinds.SECONDS, "seconds until KILL", 60.0)
    failure_grace: float = setting(
        kinds.SECONDS, "seconds for the other ranks when one has failed", 1.0
    )
    leftovers: float = setting(
        kinds.SECONDS, "seconds for what ranks that ended well left behind", 5.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """When a run counts as hung, and what becomes of it."""

    after: float = setting(
        kinds.DURATION,
        "time without a sign of life of any rank, such as 5m; never less than three times the"
        " longest until then; 0: never",
        300.0,
    )
    """Seconds."""
    action: str = setting(
        kinds.HANG_ACTION,
        "report: the run continues, and a message reports it; stop: it ends for good; restart: it"
        " ends, and `restart` starts it again",
        "report",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Failures that are recognized by an exit code or by what was printed."""

    exit_codes: tuple[int, ...] = setting(
        kinds.EXIT_CODES, "exit codes of a rank; 128 + n after signal n", ()
    )
    patterns: tuple[str, ...] = setting(
        kinds.PATTERNS, "regular expressions, looked for in the last lines that it printed", ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Whether the nodes start a run again that failed."""

    max: int = setting(kinds.RESTARTS, "most restarts after failures; 0: none", 0)
    on: Ends = setting(Ends, "failures after which it starts again whatever the cause", Ends())
    never: Ends = setting(Ends, "failures after which it never starts again", Ends())
    min_nodes: int = setting(
        kinds.NODES,
        "a restart continues with so many nodes at least if no spare node is left; 0: never",
        0,
    )
    wait: float = setting(
        kinds.DURATION,
        "if too few nodes are left, wait so long for others to join, such as 30m; 0: never",
        0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Who gets messages about a run, and which."""

    on: tuple[str, ...] = setting(
        kinds.EVENTS, "events to send: started, restarted, hung, failed, ended", ()
    )
    every: float | None = setting(
        kinds.PING_TIME, "how often to send that the run is alive, such as 10m"
    )
    command: tuple[str, ...] = setting(
        kinds.WORDS, "a command on the master that reads the event as JSON on stdin", ()
    )
    webhook_from: str | None = setting(
        kinds.VARIABLE, "instead, a variable of this machine with the URL to post to; never stored"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is launched; the command line overrides it."""

    launcher: LauncherName = setting(
        kinds.one_of(*get_args(LauncherName)),
        "what starts the ranks",
        "torchrun",
        flag="what starts the ranks (default: the job's)",
        metavar="NAME",
    )
    launcher_args: tuple[str, ...] = setting(
        kinds.WORDS,
        "passed through to the launcher",
        (),
        flag="arguments for the launcher instead of job.launcher_args; repeatable",
        metavar="ARGS",
    )
    """Arguments of the launcher `args_for`; `args` are those in use."""
    args_for: LauncherName | None = None
    """The launcher that `launcher_args` were written for; None: `launcher`."""
    wrap: tuple[str, ...] = setting(
        kinds.WORDS, "a container or another program around the job", ()
    )
    """A container's command, around all that runs on a node; another one is around each rank."""
    ray_address: str | None = setting(
        kinds.RAY_ADDRESS,
        "an existing Ray cluster for the launcher ray; absent: one of the run's own",
    )
    """An existing Ray cluster for the launcher ray; None: it starts one of the run's own."""
    slurm: tuple[tuple[str, str], ...] = setting(
        kinds.SBATCH_OPTIONS,
        "options of sbatch for the launcher slurm, such as {nodes: 2, time: 1-00:00:00}",
        (),
        resumed="file's",
    )
    """Options of sbatch for the launcher slurm: long names without `--`; an empty value: a flag."""
    procs_per_node: int | None = setting(
        kinds.PROCS,
        "a number of ranks on every node; one a GPU if absent",
        flag="ranks on every node, however many GPUs it has; 1 if the script starts its own",
        metavar="N",
    )
    """Ranks of every node, regardless of its GPUs; None: one a GPU, or the node's `procs`."""
    command: tuple[str, ...] = setting(kinds.WORDS, "the job's program and its arguments", ())
    env: tuple[tuple[str, str], ...] = setting(
        kinds.VARIABLES, "environment of the job, recorded in clear", ()
    )
    env_from: tuple[str, ...] = setting(
        kinds.VARIABLE_NAMES, "variables taken from this machine's environment; never stored", ()
    )
    """Names read from the controller's environment at launch and resume; values never stored."""
    env_init: str | None = setting(
        kinds.SHELL_LINE,
        "a shell line run on the node first; its changes of environment stay",
        on_nodes=True,
    )
    needs: tuple[str, ...] = setting(
        kinds.PATHS, "must exist and be equal on every node", (), resumed="run's or file's"
    )
    """Paths; relative ones start at workdir, as does that of `checkpoints`."""
    packages: tuple[str, ...] = setting(
        kinds.PACKAGES, "Python packages that every node needs, as name or name==version", ()
    )
    check: tuple[str, ...] = setting(
        kinds.WORDS, "a command that `check` runs on every node", (), resumed="run's or file's"
    )
    checkpoints: str | None = setting(
        kinds.NODE_PATH, "the folder of the checkpoints, from workdir", resumed="run's or file's"
    )
    resume_args: tuple[str, ...] = setting(
        kinds.WORDS,
        "added to the command by resume; {checkpoint} becomes the path, {checkpoint_step} the step",
        (),
        resumed="run's or file's",
    )
    stop: Stop = setting(Stop, "how the ranks are asked to end", Stop(), on_nodes=True)
    hang: Hang = setting(
        Hang, "when a run without a sign of life counts as hung", Hang(), on_nodes=True
    )
    restart: Restart = setting(
        Restart, "whether the nodes start a run again that failed", Restart()
    )
    progress: tuple[str, ...] = setting(
        kinds.PROGRESS,
        "regular expressions that find how far it is in the last lines of the first rank, by"
        " groups named step, total, loss and tokens_per_s",
        (),
        on_nodes=True,
        resumed="run's or file's",
    )
    before: str | None = setting(
        kinds.SHELL_LINE,
        "a shell line run on every node before the ranks of each attempt",
        on_nodes=True,
    )
    after: str | None = setting(
        kinds.SHELL_LINE,
        "a shell line run on every node once all ranks have ended, also after a failure",
        on_nodes=True,
    )
    before_after_timeout: float = setting(
        kinds.RUN_TIME, "time that before and after may each take", 600.0, on_nodes=True
    )
    notify: tuple[Notify, ...] = setting(
        kinds.sections(Notify, "a list of receivers"),
        "who gets messages about the run",
        (),
        on_nodes=True,
        resumed="run's or file's",
    )
    max_time: float | None = setting(
        kinds.MAX_TIME,
        "time after which the run is stopped, such as 12h, over all its attempts",
        flag="time after which the run is stopped, such as 90m, 12h or 7d; 0: never",
        metavar="T",
        on_nodes=True,
    )
    """Seconds from the start on the master; None or 0: no limit."""
    start_timeout: float = setting(
        kinds.TIMEOUT,
        default=600.0,
        flag="seconds until the run ends if not all ranks have joined",
        metavar="S",
        on_nodes=True,
    )
    """Seconds that the ranks have to join."""
    lost_after: float = setting(
        kinds.TIMEOUT,
        default=15.0,
        flag="seconds without a heartbeat until a node counts as lost",
        metavar="S",
    )
    """Seconds of silence after which a node is lost."""
    debug: bool = setting(
        kinds.BOOLEAN, default=False, flag="set the debug variables of NCCL and torch"
    )
    """Let NCCL and torch log all that they can."""

    @property
    def webhooks(self) -> tuple[str, ...]:
        """The variables of the controller that have the URLs of `notify`."""
        return tuple(dict.fromkeys(one.webhook_from for one in self.notify if one.webhook_from))

    @property
    def args(self) -> tuple[str, ...]:
        """Arguments of the launcher in use; none if they were written for another one."""
        return self.launcher_args if self.args_for in {None, self.launcher} else ()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An inventory with all defaults applied."""

    name: str
    nodes: tuple[Node, ...]
    """Launch order: the master first, then as written, spares last. Index is the node rank."""
    shared: tuple[str, ...] = ()
    """Paths that must be one filesystem, seen by all nodes."""
    subnet: str | None = None
    master_port: int | None = None
    same_machine: bool = False
    """Two entries on one machine are allowed (`same_machine: allow`)."""
    avoid_quarantined: bool = False
    """A launch leaves out nodes in quarantine (`quarantine: {avoid: true}`)."""
    job: Job = Job()
    file: str = ""
    fingerprint: str = field(default="", compare=False)
    """Hash of that file, its path and its reader: if equal, the clusters are equal."""
    left_out: tuple[Node, ...] = ()
    """Nodes of the inventory that are not selected; they may share folders with those that are."""
    origins: tuple[tuple[str, str], ...] = ()
    """Name of a value → its origin, if that is not the inventory: `gpus` → `--gpus`."""

    @property
    def master(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def active(self) -> tuple[Node, ...]:
        """The nodes that have ranks from the start."""
        return tuple(node for node in self.nodes if not node.spare)

    @property
    def spares(self) -> tuple[Node, ...]:
        """The nodes that stand by."""
        return tuple(node for node in self.nodes if node.spare)

    @property
    def slurm_job(self) -> str | None:
        """The Slurm job whose nodes these are; None: they are not reached by srun."""
        return next((node.ssh.slurm_job for node in self.nodes if node.ssh.slurm_job), None)

    @property
    def by_slurm(self) -> bool:
        """Slurm chooses the nodes: inside of an allocation they are its own."""
        return self.slurm_job is not None or self.job.launcher == "slurm" or not self.nodes

    def origin(self, name: str, inventory: str) -> str:
        """Return the origin of a value: a flag or variable, else `inventory`."""
        return dict(self.origins).get(name, inventory)

    def node(self, name: str) -> Node:
        """Return the node of this name; raise KeyError if there is none."""
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def with_nodes(self, nodes: tuple[Node, ...]) -> Cluster:
        """Return the same cluster with these nodes only; the others are left out."""
        names = {node.name for node in nodes}
        others = (node for node in (*self.nodes, *self.left_out) if node.name not in names)
        return replace(self, nodes=nodes, left_out=tuple(others))
