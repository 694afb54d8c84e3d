"""What the nodes found when they connected to each other."""

from clusterctl.facts.network.counters import Counters
from clusterctl.model.from_json import Port, Seconds
from clusterctl.values import dataclass

LARGEST_PROBE = 16384
"""Bytes of the largest packet to try: no Ethernet has larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenResult:
    """The result of our listener on a node: its `port`, else the error."""

    key: str
    """`pair`, or `master` for the port of the rendezvous."""
    address: str
    port: Port | None = None
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
    port: Port = 0
    state: str
    """`ok`, `refused`, `timeout`, `unreachable`, `foreign` (another program answers), `error`."""
    words: str = ""
    seconds: Seconds | None = None
    source: str = ""
    """The address that the kernel gave the connection."""
    seen_as: str = ""
    """The address that the target saw."""
    interface: str = ""
    """The interface that the kernel sends its packets through; empty: unknown."""
    full_size: bool | None = None
    """A packet as large as the target's interface allows came from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSeen:
    """Whether this node saw what another node wrote to a shared path."""

    path: str
    writer: str
    seen: bool | None = None
    delay_s: Seconds | None = None
    """From the write to the read, by the controller's order of events."""
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseFacts:
    """The result of the second round trip, after the network was chosen."""

    bound: tuple[ListenResult, ...] = ()
    connected: tuple[ConnectResult, ...] = ()
    tokens: tuple[TokenSeen, ...] = ()
    counters: tuple[Counters, ...] = ()
    """Read again after the connections."""
    problem: str = ""
    """Why this node did not take part; empty if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """How fast a node exchanges data with another one."""

    peer: str
    round_trip_s: float
    gbps: float
    """From this node to the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The result of an all-reduce across all nodes, on this node."""

    backend: str = ""
    right: bool = False
    """The sum was the right one."""
    gbps: float = 0.0
    """Data moved by this node in a large all-reduce, by the usual formula."""
    error: str = ""
    block_bytes: int | None = None
    """Of the sum that was timed."""
    pairs: tuple[PairRate, ...] = ()
    """To the nodes that it tried; to all of them, if there was time."""
