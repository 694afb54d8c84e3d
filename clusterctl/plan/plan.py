"""The plan of a run: what starts on each node, with the origin of every value."""

from collections.abc import Mapping
from typing import Any, Literal

from clusterctl.inventory.cluster import LauncherName, Stop
from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA

Layer = Literal["built-in", "chosen", "asked", "launcher"]
"""Who sets a variable, from weak to strong: a stronger layer overrides a weaker one.

The node's own environment overrides built-in values. `env_init` comes between chosen and asked.
Nothing overrides what the launcher needs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of the whole run."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable of a node's ranks."""

    name: str
    value: str | None
    """None: known only at launch (a secret, the rank's own number)."""
    layer: Layer
    origin: str
    """A flag, `CLUSTERCTL_…`, `job.env`, `env_from`, or why it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What starts on one node."""

    node: str
    host: str
    node_rank: int
    address: str
    interface: str
    first_rank: int
    procs: int
    procs_origin: str
    device: Literal["cuda", "cpu"]
    workdir: str
    state: str
    """The run's folder on this node."""
    lock: str
    launcher_argv: tuple[str, ...]
    """The launcher's command; empty: the supervisor starts the ranks."""
    argv: tuple[str, ...]
    """The command of each rank."""
    wrap: tuple[str, ...] = ()
    """What stands in front of each rank's command."""
    container: tuple[str, ...] = ()
    """What starts a container around the launcher, or around each rank."""
    python: str = "python3"
    """The job's interpreter; of a container, the one inside."""
    path_first: str | None
    """The interpreter's folder, first on PATH."""
    env: tuple[Variable, ...]
    launcher_program: str = ""
    """The function of the agent that starts both commands; empty: the supervisor does."""
    ends_with_master: bool = False
    """Its processes serve those of the master: they end once the run is over there."""
    launch: Mapping[str, Any] | None = None
    """What the launcher's command was made of, of a run that may continue on other nodes."""

    @property
    def ranks(self) -> range:
        """The global ranks of this node."""
        return range(self.first_rank, self.first_rank + self.procs)

    @property
    def command_line(self) -> tuple[str, ...]:
        """The whole command of this node, as you would type it; of Ray, without the driver's."""
        ranks = () if self.launcher_program else (*self.wrap, *self.argv)
        return (*self.container, *self.launcher_argv, *ranks)

    @property
    def driver(self) -> tuple[str, ...]:
        """The command that is started once Ray is up on all nodes; empty: none on this one."""
        alone = self.launcher_program and not self.ends_with_master
        return (*self.wrap, *self.argv) if alone else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlan:
    """What the part of a node that joins the run is planned by, besides the launch."""

    max_nodes: int
    """0: the number of nodes is fixed, and a node that joins stands by."""
    subnet: str
    """The data network; empty: each node's route to the master decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRun:
    """A live run that may write checkpoints to the same folder."""

    run: str
    began: float
    """By the controller's clock."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What starts on all nodes."""

    schema: int = SCHEMA
    run: str
    cluster: str
    launcher: LauncherName
    nodes: tuple[NodePlan, ...]
    """The nodes that have ranks, the master first; the index is the node rank."""
    spares: tuple[NodePlan, ...] = ()
    """The nodes that stand by; each with the ranks that it would have in another's place."""
    world_size: int
    master_address: str
    master_port: int
    env_init: str | None
    env_from: tuple[str, ...]
    stop: Stop
    start_timeout: float
    lost_after: float
    launcher_decides: bool
    """The launcher restarts ranks: the end of a rank is not the end of the run."""
    min_nodes: int = 0
    """The run continues while so many nodes are left; 0: it needs all of them."""
    elastic: ElasticPlan | None = None
    """None: no node can join."""
    name: str = ""
    """The user's own name for the run."""
    controller: str = ""
    """The host that launches it."""
    checkpoints: str = ""
    """The folder that this run writes its checkpoints to, from workdir."""
    sharing: tuple[SharingRun, ...] = ()
    """The live runs that may write there, too."""
    gathers: bool = True
    """The ranks connect to the master's port; False: a driver of a Ray cluster that exists."""
    settings: tuple[Setting, ...]

    @property
    def master(self) -> NodePlan:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def hostfile(self) -> str:
        """All nodes and their ranks, as mpirun and DeepSpeed read them."""
        return "".join(f"{node.address} slots={node.procs}\n" for node in self.nodes)

    @property
    def workers(self) -> tuple[NodePlan, ...]:
        """The nodes that start once the master's process is up, spares last."""
        return (*self.nodes[1:], *self.spares)

    def node(self, name: str) -> NodePlan:
        """Return the plan of the node of this name; raise KeyError if there is none."""
        for node in (*self.nodes, *self.spares):
            if node.node == name:
                return node
        raise KeyError(name)
