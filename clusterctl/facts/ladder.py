"""What `check --deep` tried on a node, one rung after the other, until one was broken."""

from clusterctl.values import dataclass

SOCKET = "Socket"
"""NCCL's name for TCP."""
NO_NETWORK = frozenset({"P2P", "SHM"})
"""How NCCL sends data without a network, also between nodes that share NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder on a node."""

    name: str
    """`sum`, `gpus`, `dcgm`, `inside` or `across`."""
    works: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTransport:
    """How NCCL sends data, by its own lines."""

    network: str = ""
    """`IB` (InfiniBand and RoCE), `Socket`, or the name of a plugin; empty: it did not say."""
    devices: tuple[str, ...] = ()
    """What that network found: `mlx5_0:1/IB`, or `eth0`."""
    via: tuple[str, ...] = ()
    """Of its connections: `NET/IB/GDRDMA`, `P2P/CUMEM`, `SHM/direct`, …"""
    gpu_direct: bool | None = None
    """All connections of the network have GPUDirect RDMA; None: there is none."""
    version: str = ""

    @property
    def way(self) -> str:
        """The network of its connections; `P2P` (NVLink) or `SHM` if they need none."""
        if any(one.startswith("NET/Socket") for one in self.via):
            return SOCKET
        direct = self.via and not any("NET/" in one for one in self.via)
        return self.via[0].partition("/")[0] if direct else self.network


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTrial:
    """One GPU, tried alone or as a rank among those of its node."""

    index: int
    """As the vendor's tool numbers it."""
    state: str = "ok"
    """`ok`, `error`, or `timeout`: its process was killed."""
    error: str = ""
    free_mib: int | None = None
    wrong_numbers: int | None = None
    """Of a product whose result is known."""
    wrong_copies: int | None = None
    """Numbers that differ after a copy within the memory."""
    tflops: float | None = None
    memory_gb_s: float | None = None
    right: bool | None = None
    """The sum over the node's GPUs was the right one."""
    gbps: float | None = None
    """Data that it moved in that sum, by the usual formula."""
    block_bytes: int | None = None
    """Of the sum that was timed."""
    transport: NcclTransport | None = None
    """None: NCCL printed nothing of use, or had no part in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """A GPU among those of the same place on the other nodes: they share switches."""

    index: int
    """As the vendor's tool numbers it."""
    state: str = "ok"
    """`ok`, `error`, or `timeout`: its process was killed."""
    error: str = ""
    right: bool | None = None
    gbps: float | None = None
    """Data that it moved in an all-reduce, by the usual formula."""
    block_bytes: int | None = None
    fastest_gbps: float | None = None
    """To the node to which it is fastest."""
    transport: NcclTransport | None = None
    """None: NCCL printed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmTest:
    """The result of one of DCGM's tests, on one GPU or on all."""

    name: str
    status: str
    """`pass`, `fail`, `warn` or `skip`."""
    gpus: tuple[int, ...] = ()
    words: str = ""
    setting: bool = False
    """It failed because of a setting of the machine, such as persistence mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcgm:
    """DCGM's short diagnostic."""

    state: str
    """`ok` (it has tests), `absent`, `not-asked`, `no-hostengine`, `timeout` or `error`."""
    version: str = ""
    tests: tuple[DcgmTest, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """How far a node came."""

    rungs: tuple[Rung, ...] = ()
    """Those that it tried, in order."""
    stopped: str = ""
    """The rung that broke on some node; empty if none did."""
    blamed: tuple[str, ...] = ()
    """The nodes where it broke."""
    gpus: tuple[GpuTrial, ...] = ()
    dcgm: Dcgm | None = None
    inside: tuple[GpuTrial, ...] = ()
    rails: tuple[Rail, ...] = ()
    """Empty if not every node has GPUs: the CPUs exchanged data then."""
    error: str = ""
    """Why it does not know more."""

    @property
    def ways(self) -> frozenset[str]:
        """How NCCL sent data to other nodes; empty for unknown."""
        told = (rail.transport.way for rail in self.rails if rail.transport)
        return frozenset(way for way in told if way)
