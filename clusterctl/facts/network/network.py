"""The network of a node: interfaces, routes, listening sockets and RDMA ports."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_interface, ip_network

from clusterctl.values import dataclass


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
    numa: int | None = None
    """The NUMA node of its slot, read if GPUs are planned."""
    loopback: bool = False
    duplex: str = ""
    """`full` or `half`; empty: unknown, as of virtual links."""
    carrier_changes: int | None = None
    """How often the link came up or went down since boot."""
    parent: str = ""
    """The interface that a VLAN is on."""
    rp_filter: int | None = None
    """1: a packet is dropped if the way back to its sender is through another interface."""
    arp_ignore: int | None = None
    """1 and more: ARP is answered only for addresses of the interface that was asked."""

    def __post_init__(self) -> None:
        """Refuse what is not an address: other code parses them without a check."""
        for address in self.addresses:
            ip_interface(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class BondPort:
    """An interface that belongs to a bond."""

    bond: str
    interface: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of a network interface, or of an RDMA port such as `mlx5_0/1`."""

    device: str
    values: tuple[tuple[str, int], ...]


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
class Gid:
    """An address of an RDMA port, with its place in the port's table."""

    index: int
    address: str
    kind: str = ""
    """`RoCE v2`, or `IB/RoCE v1`."""
    interface: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not an address."""
        IPv6Address(self.address)

    @property
    def family(self) -> str:
        """Return what it is: NCCL needs the same on both ends."""
        address = IPv6Address(self.address)
        if address.ipv4_mapped is not None:
            return f"{self.kind}, IPv4"
        return f"{self.kind}, link-local" if address.is_link_local else f"{self.kind}, IPv6"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA device (InfiniBand or RoCE)."""

    device: str
    port: int
    state: str
    link_layer: str
    rate_gbps: int | None = None
    rate: str = ""
    """As the kernel writes it: `400 Gb/sec (4X NDR)`."""
    phys_state: str = ""
    """`LinkUp`; `Polling` without a cable, `Disabled` if it is switched off."""
    lid: int | None = None
    """0: no subnet manager has given the port an address."""
    pkey: int | None = None
    gids: tuple[Gid, ...] = ()
    gids_read: int = 0
    """How many places of the table were read."""
    board: str = ""
    firmware: str = ""
    vendor: str = ""
    """Of the PCI device: `0x15b3` is Mellanox, `0x1d0f` Amazon (EFA)."""

    @property
    def name(self) -> str:
        """Its name in `rdma link`."""
        return f"{self.device}/{self.port}"

    @property
    def active(self) -> bool:
        """The port carries traffic."""
        return self.state == "ACTIVE"
