"""The values of an inventory: a cluster, its nodes, the job, with all defaults applied."""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import Literal

from clusterctl.values import dataclass

Via = Literal["paramiko", "openssh", "srun"]
LauncherName = Literal["torchrun", "direct", "accelerate", "ray", "slurm"]
"""Each is a file of `plan/launchers/`."""
START_TIMEOUT = 600.0
LOST_AFTER = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How to reach one node; None: the value of ssh_config, else OpenSSH's default."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None
    """Path of the private key on the controller, `~` expanded."""
    jump: str | None = None
    """In the form of ProxyJump; `none` overrides ssh_config."""
    via: Via = "paramiko"
    slurm_job: str | None = None
    """For `via: srun`, the id of the allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the inventory, its defaults applied."""

    host: str
    """As written in the inventory (a range's member): how SSH reaches it and how we name it."""
    name: str
    """Unique in the cluster and safe as a file name: the host, with `_PORT` if two share it."""
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
    """How to ask a rank to end: by a signal, or by a new file in workdir."""

    signal: str | None = "TERM"
    file: str | None = None
    grace: float = 60.0
    """Seconds until KILL."""
    failure_grace: float = 1.0
    """Seconds for the other ranks once one has failed."""
    leftovers: float = 5.0
    """Seconds for processes that ranks leave behind after a good end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to launch; the command line overrides it."""

    launcher: LauncherName = "torchrun"
    launcher_args: tuple[str, ...] = ()
    """Arguments of the launcher `args_for`; `args` are those in use."""
    args_for: LauncherName | None = None
    """The launcher that `launcher_args` were written for; None: `launcher`."""
    wrap: tuple[str, ...] = ()
    """A container's command, around all that runs on a node; another one is around each rank."""
    slurm: tuple[tuple[str, str], ...] = ()
    """Options of sbatch for the launcher slurm: long names without `--`; an empty value: a flag."""
    ray_address: str | None = None
    """An existing Ray cluster for the launcher ray; None: it starts one of the run's own."""
    procs_per_node: int | None = None
    """Ranks of every node, regardless of its GPUs; None: one a GPU, or the node's `procs`."""
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[str, ...] = ()
    """Names read from the controller's environment at launch and resume; values never stored."""
    env_init: str | None = None
    needs: tuple[str, ...] = ()
    """Paths; relative ones start at workdir, as does that of `checkpoints`."""
    packages: tuple[str, ...] = ()
    """Python packages that every node needs: `name` or `name==version`."""
    check: tuple[str, ...] = ()
    checkpoints: str | None = None
    resume_args: tuple[str, ...] = ()
    stop: Stop = Stop()
    start_timeout: float = START_TIMEOUT
    """Seconds that the ranks have to join; only the command line sets this and the next two."""
    lost_after: float = LOST_AFTER
    """Seconds of silence after which a node is lost."""
    debug: bool = False
    """Let NCCL and torch log all that they can."""

    @property
    def args(self) -> tuple[str, ...]:
        """Arguments of the launcher in use; none if they were written for another one."""
        return self.launcher_args if self.args_for in {None, self.launcher} else ()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An inventory with all defaults applied."""

    name: str
    nodes: tuple[Node, ...]
    """Launch order: the master first, then as written. Index here is the node rank."""
    shared: tuple[str, ...] = ()
    """Paths that must be one filesystem, seen by all nodes."""
    subnet: str | None = None
    master_port: int | None = None
    same_machine: bool = False
    """Two entries on one machine are allowed (`same_machine: allow`)."""
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
