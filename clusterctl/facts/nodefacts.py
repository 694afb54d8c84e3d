"""The facts of one node: frozen values, each possibly unknown.

None always means unknown, never zero and never "no". `NodeFacts.gaps` says why.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clusterctl.facts.gpu.accelerators import Gpu, GpuDriver, Gpus
from clusterctl.facts.gpu.pcie import PciePaths
from clusterctl.facts.ladder import Ladder
from clusterctl.facts.machine.kernel_log import KernelLog
from clusterctl.facts.machine.machine_state import CgroupLimits, MachineState, MemoryUse, RunLock
from clusterctl.facts.machine.system import Clock, Limits, SshStatus
from clusterctl.facts.network.counters import Counters
from clusterctl.facts.network.firewall import FirewallChain
from clusterctl.facts.network.interfaces import BondPort, Interface
from clusterctl.facts.network.pairwise import Collective, PairwiseFacts
from clusterctl.facts.network.ports import Listener
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.facts.network.routes import Route
from clusterctl.facts.software.programs import AgentPython, CommandResult, Image, Updates
from clusterctl.facts.software.python import Python
from clusterctl.facts.software.settings import Setting
from clusterctl.facts.storage.storage import BuildLock, PathFacts
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.model.quarantine import Quarantined
from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFact:
    """A fact that was asked for and is unknown."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts of one node."""

    node: str
    reach: SshStatus = field(default_factory=SshStatus)
    hostname: str | None = None
    hostname_addresses: tuple[str, ...] | None = None
    """The addresses of its own name there."""
    boot_id: str | None = None
    netns: str | None = None
    """Differs between containers of one machine."""
    os: str | None = None
    kernel: str | None = None
    arch: str | None = None
    uid: int | None = None
    user: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    clock: Clock | None = None
    kernel_log: KernelLog | None = None
    machine: MachineState | None = None
    interfaces: tuple[Interface, ...] | None = None
    bond_ports: tuple[BondPort, ...] = ()
    counters: tuple[Counters, ...] = ()
    """Errors that links counted until these facts were read."""
    routes: tuple[Route, ...] | None = None
    listeners: tuple[Listener, ...] | None = None
    ephemeral_ports: tuple[int, int] | None = None
    reserved_ports: tuple[tuple[int, int], ...] | None = None
    """Ranges of ports that the kernel gives to no connection by itself."""
    conntrack: tuple[int, int] | None = None
    """Connections that the firewall tracks, and the most that it can."""
    firewall: str | None = None
    """`firewalld` or `ufw` if it is on, else `nft` or `iptables` if it is installed."""
    firewall_chains: tuple[FirewallChain, ...] | None = None
    """Read as root where a connection failed and `firewall` is `nft`; None: not read."""
    rdma: tuple[RdmaPort, ...] | None = None
    ofi_plugin: bool | None = None
    """aws-ofi-nccl, by which NCCL uses EFA, is in a usual place."""
    gpus: Gpus | None = None
    pcie_paths: PciePaths | None = None
    """None: no NVIDIA GPU is planned, or none is there."""
    python: Python | None = None
    agent: AgentPython | None = None
    rsync: str | None = None
    """Its path; empty if it is not installed."""
    paths: tuple[PathFacts, ...] = ()
    build_locks: tuple[BuildLock, ...] | None = None
    """None: not asked for, as of a job in a container, or they could not be read."""
    limits: Limits | None = None
    kill_user_processes: bool | None = None
    linger: bool | None = None
    lock: RunLock | None = None
    """The whole machine's."""
    sharing: tuple[RunLock, ...] = ()
    """Runs that hold some of the machine's GPUs each."""
    environment: tuple[tuple[str, str], ...] | None = None
    """Variables of the session that NCCL, Gloo and torch read."""
    etc_environment: tuple[str, ...] = ()
    """The names of the variables that /etc/environment sets."""
    job_environment: tuple[tuple[str, str], ...] | None = None
    """These variables as `env_init` leaves them; None: the job has none, or it failed."""
    updates: Updates | None = None
    """None: the node updates nothing by itself, or that is not known."""
    nccl_conf: tuple[Setting, ...] = ()
    """The settings in /etc/nccl.conf and ~/.nccl.conf."""
    image: Image | None = None
    """None: the job runs in no container, or there was no answer."""
    launcher_config: tuple[tuple[str, str], ...] | None = None
    """The settings in the launcher's own file, none without one; None: it was not read."""
    requirements: tuple[tuple[str, str], ...] = ()
    """The packages that requirements.txt in the folder here names, each with its versions."""
    quarantine: tuple[Quarantined, ...] | None = None
    """What this machine remembers against the node: one at most; None: it was not read."""
    between: PairwiseFacts | None = None
    """None: the second round trip was not made."""
    job_check: CommandResult | None = None
    collective: Collective | None = None
    """None: not tried; `check --deep` does."""
    across: Collective | None = None
    """As `collective`, on a GPU of each node; None: not tried, or not on GPUs."""
    ladder: Ladder | None = None
    """None: not tried; `check --deep` does."""
    gaps: tuple[UnknownFact, ...] = ()
    timed_out: tuple[str, ...] = ()
    """What the node took too long to read: `files`, `command:NAME`, `path:PATH` and the like."""

    @property
    def answered(self) -> bool:
        """The node answered, so the other fields are valid."""
        return self.reach.state == "ok"

    @property
    def on_systemd(self) -> bool:
        """It is known to run systemd: most likely it is no container."""
        return bool(self.machine_state.machine_id)

    # Of a group that is unknown, each value is: rules need not ask for the group first.

    @property
    def machine_state(self) -> MachineState:
        """What is known of `machine`."""
        return self.machine or MachineState()

    @property
    def memory_use(self) -> MemoryUse:
        """What is known of the memory in use."""
        return self.machine_state.memory or MemoryUse()

    @property
    def cgroup(self) -> CgroupLimits:
        """What is known of the cgroups of the session."""
        return self.machine_state.cgroup or CgroupLimits()

    @property
    def session_limits(self) -> Limits:
        """What is known of `limits`."""
        return self.limits or Limits()

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The accelerators that are known."""
        return self.gpus.devices if self.gpus else ()

    @property
    def gpu_driver(self) -> GpuDriver:
        """What is known of NVIDIA's driver in the kernel."""
        return (self.gpus.kernel if self.gpus else None) or GpuDriver()

    @property
    def trials(self) -> Ladder:
        """What is known of `ladder`."""
        return self.ladder or Ladder()

    @property
    def met(self) -> PairwiseFacts:
        """What is known of `between`."""
        return self.between or PairwiseFacts()

    def path(self, path: str) -> PathFacts | None:
        """Return the facts of a path that was asked for."""
        return next((p for p in self.paths if p.path == path), None)

    def interface(self, name: str) -> Interface | None:
        """Return the interface of this name."""
        return next((i for i in self.interfaces or () if i.name == name), None)

    def why_unknown(self, what: str) -> str:
        """Return why `what` is unknown; empty if no reason is recorded."""
        return next((g.why for g in self.gaps if g.what == what), "")


def to_document(facts: Mapping[str, NodeFacts]) -> dict[str, Any]:
    """Return the document of these facts."""
    return {"schema": SCHEMA, "nodes": [plain(node) for node in facts.values()]}


def from_document(document: object) -> dict[str, NodeFacts]:
    """Read facts by node name; raise DocumentError if the document does not hold them."""
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise DocumentError("expected an object with a list `nodes`")
    nodes = from_json(tuple[NodeFacts, ...], document["nodes"], "nodes", finite=False)
    return {node.node: node for node in nodes}
