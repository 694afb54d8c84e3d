"""The facts of one node: frozen values, each possibly unknown.

None always means unknown, never zero and never "no". `NodeFacts.gaps` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface, ip_network

UNLIMITED = -1
"""A resource limit that is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFact:
    """A fact that was asked for and is unknown."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SshStatus:
    """How the node answered SSH and ping."""

    state: str = "ok"
    """`transport.interface.State`."""
    phase: str = ""
    words: str = ""
    hint: str = ""
    seconds: float | None = None
    ping: str = ""
    """`ok`, `silent`, or empty if it was not tried."""
    key: str | None = None
    """Why the inventory's key cannot be read; empty: it can; None: the inventory has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The node's clock minus the controller's, from the shortest of several round trips."""

    offset_s: float
    error_s: float
    """Half of that round trip: the largest error of the offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface."""

    name: str
    addresses: tuple[str, ...] = ()
    """With prefix length, as `10.1.0.5/24`."""
    running: bool | None = None
    """It is up and has carrier."""
    speed_mbps: int | None = None
    mtu: int | None = None
    loopback: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not an address: other code parses them without a check."""
        for address in self.addresses:
            ip_interface(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A line of the node's main routing table."""

    destination: str
    """A network, `0.0.0.0/0` for the default route."""
    interface: str
    gateway: str = ""
    source: str = ""
    metric: int = 0

    def __post_init__(self) -> None:
        """Refuse what is not a network."""
        ip_network(self.destination)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A TCP socket that listens."""

    address: str
    port: int
    uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA device (InfiniBand or RoCE)."""

    device: str
    port: int
    state: str
    link_layer: str
    rate_gbps: int | None = None

    @property
    def active(self) -> bool:
        """The port carries traffic."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator."""

    index: int
    name: str
    uuid: str = ""
    bus_id: str = ""
    memory_mib: int | None = None
    used_mib: int | None = None
    mig: bool | None = None
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool | None = None
    recovery_action: str = ""
    """What the driver asks for (Reset, Reboot, …); empty for nothing or unknown."""
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The accelerators that the vendor's tool lists."""

    tool: str = ""
    """The tool that was asked; empty if none is installed."""
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver can run."""
    devices: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch itself reports; asked only if GPUs are planned."""

    cuda_available: bool
    device_count: int
    nccl: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed package of the job's interpreter."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The job's interpreter in a non-interactive shell."""

    asked: str
    found: bool = False
    executable: str = ""
    version: str = ""
    packages: tuple[Package, ...] = ()
    """The installed ones of those that matter to training."""
    torch_build: str = ""
    """What torch was built for: `cpu`, a CUDA version, `rocm…`; empty for no torch."""
    torch: Torch | None = None
    problem: str = ""
    """Why it could not be started or did not answer."""

    def package(self, name: str) -> str:
        """Return the package's version, empty for not installed."""
        return next((p.version for p in self.packages if p.name == name), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPython:
    """The Python that runs clusterctl's own code on the node."""

    executable: str
    lacks: tuple[str, ...] = ()
    """Modules of the standard library that a run may need and this build does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """One path that the run depends on."""

    path: str
    exists: bool | None = None
    folder: bool | None = None
    writable: bool | None = None
    """Of a path that does not exist: its nearest folder that does."""
    size: int | None = None
    """Bytes of a file; of a folder, the sum of its files."""
    entries: int | None = None
    """Files of a folder, at any depth."""
    digest: str = ""
    """Equal if the sizes, and the ends of the largest files, are equal."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    mount: str = ""
    """Where its filesystem is mounted."""
    source: str = ""
    """What is mounted there, such as `server:/export`."""
    filesystem: str = ""
    read_only: bool | None = None
    problem: str = ""
    """The system's error, or that it did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """The run that holds the node."""

    run: str = ""
    """Empty: nobody."""
    user: str = ""
    since: str = ""
    about: str = ""
    """Its name, command and origin, by its supervisor."""
    holds: tuple[str, ...] = ()
    """UUIDs of its GPUs, and `port-N` if its ranks meet here; empty: it holds the whole machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of the non-interactive session; UNLIMITED if not set."""

    memlock: int | None = None
    nofile: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenResult:
    """The result of our listener on a node: its `port`, else the error."""

    key: str
    """`pair`, or `master` for the port of the rendezvous."""
    address: str
    port: int | None = None
    error: str = ""
    holder: str = ""
    """The process that has the port instead, if known."""
    foreign: tuple[str, ...] = ()
    """Addresses of other clients, which did not know our token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectResult:
    """The result of a connection to our listener on another node."""

    target: str
    """The node that listens."""
    key: str
    address: str
    port: int
    state: str
    """`ok`, `refused`, `timeout`, `unreachable`, `foreign` (another program answers), `error`."""
    words: str = ""
    seconds: float | None = None
    source: str = ""
    """The address that the kernel gave the connection."""
    seen_as: str = ""
    """The address that the target saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSeen:
    """Whether this node saw what another node wrote to a shared path."""

    path: str
    writer: str
    seen: bool | None
    delay_s: float | None = None
    """From the write to the read, by the controller's order of events."""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseFacts:
    """The result of the second round trip, after the network was chosen."""

    bound: tuple[ListenResult, ...] = ()
    connected: tuple[ConnectResult, ...] = ()
    tokens: tuple[TokenSeen, ...] = ()
    problem: str = ""
    """Why this node did not take part; empty if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How `job.check` ended."""

    exit_code: int | None
    """None: it could not be started or did not end in time."""
    output: str = ""
    """Its last lines."""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The result of an all-reduce across all nodes, on this node."""

    backend: str = ""
    right: bool = False
    """The sum was the right one."""
    gbps: float = 0.0
    """Data moved by this node in a large all-reduce, by the usual formula."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts of one node."""

    node: str
    reach: SshStatus = SshStatus()
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
    interfaces: tuple[Interface, ...] | None = None
    routes: tuple[Route, ...] | None = None
    listeners: tuple[Listener, ...] | None = None
    ephemeral_ports: tuple[int, int] | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    gpus: Gpus | None = None
    python: Python | None = None
    agent: AgentPython | None = None
    rsync: str | None = None
    """Its path; empty if it is not installed."""
    paths: tuple[PathFacts, ...] = ()
    limits: Limits | None = None
    kill_user_processes: bool | None = None
    linger: bool | None = None
    lock: RunLock | None = None
    """The whole machine's."""
    sharing: tuple[RunLock, ...] = ()
    """Runs that hold some of the machine's GPUs each."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of the session that NCCL, Gloo and torch read."""
    nccl_conf: tuple[tuple[str, str], ...] = ()
    """The settings in /etc/nccl.conf and ~/.nccl.conf."""
    between: PairwiseFacts | None = None
    """None: the second round trip was not made."""
    job_check: CommandResult | None = None
    collective: Collective | None = None
    """None: not tried; `check --deep` does."""
    gaps: tuple[UnknownFact, ...] = ()

    @property
    def answered(self) -> bool:
        """The node answered, so the other fields are valid."""
        return self.reach.state == "ok"

    def path(self, path: str) -> PathFacts | None:
        """Return the facts of a path that was asked for."""
        return next((p for p in self.paths if p.path == path), None)

    def interface(self, name: str) -> Interface | None:
        """Return the interface of this name."""
        return next((i for i in self.interfaces or () if i.name == name), None)

    def why_unknown(self, what: str) -> str:
        """Return why `what` is unknown; empty if no reason is recorded."""
        return next((g.why for g in self.gaps if g.what == what), "")
