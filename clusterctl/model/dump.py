"""What a node answers to `dump`: the stacks of a run's ranks, and more evidence."""

from __future__ import annotations

from typing import Annotated, Literal

from clusterctl.model.from_json import Bounds, Count, Pid, Port, Rank, Seconds
from clusterctl.values import dataclass

Source = Literal["py-spy", "kernel", ""]
"""Who told a stack: the first that was allowed; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call on a stack."""

    function: str
    file: str = ""
    """As the interpreter names it; empty for a frame of the kernel."""
    line: Count = 0
    """0: unknown."""
    locals: tuple[str, ...] = ()
    """`name=value`, only if they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """What one thread does."""

    id: Pid
    """As the kernel counts threads."""
    name: str = ""
    state: str = ""
    """One letter, as in /proc/PID/stat: `D` waits in the kernel, `T` is stopped."""
    wait: str = ""
    """Where it waits in the kernel, such as `futex_do_wait`; empty: it runs, or that is hidden."""
    cpu_percent: Count | None = None
    """Its CPU time during the dump; 100 is one core."""
    frames: tuple[Frame, ...] = ()
    """Innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDump:
    """A process of a rank: its own, or one that it started, such as a data loader's worker."""

    pid: Pid
    command: str = ""
    state: str = ""
    """One letter, as in /proc/PID/stat."""
    source: Source = ""
    """Who told its stacks."""
    missing: str = ""
    """What could not be seen, and why, in words; empty: all was."""
    swap_bytes: Count = 0
    threads: tuple[ThreadStack, ...] = ()
    """The main thread first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckConnection:
    """A connection of a rank to another node whose data is not taken."""

    peer: str
    """Its address."""
    port: Port
    unacknowledged_bytes: Count
    retransmits: Count
    """How often in a row the kernel has sent the same again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective operation that a rank entered, as the flight recorder tells."""

    group: str
    """The process group, by its name."""
    sequence: Count
    """Its number within the group."""
    operation: str
    """Such as `all_reduce`."""
    input_sizes: tuple[tuple[Count, ...], ...] = ()
    dtype: str = ""
    state: Literal["scheduled", "started", "completed"] = "scheduled"
    frames: tuple[Frame, ...] = ()
    ranks: tuple[Rank, ...] = ()
    """Those of its group; only of the newest of a group, and empty if that is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRank:
    """One rank of a communicator, as NCCL names it."""

    rank: Rank
    """Its number in the communicator."""
    host: str
    """Its node's address."""
    pid: Pid
    """The process, as its own container counts."""
    dead: bool = False
    """NCCL has given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """How often the ranks of a communicator have launched a collective."""

    operation: str
    """Such as `AllReduce`; empty: all together."""
    least: Count
    most: Count
    behind: tuple[NcclRank, ...] = ()
    """Those that launched the least, if not all launched as many; at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One of NCCL's communicators, as its status service (RAS) tells."""

    name: str
    """Its hash."""
    size: Count
    """Its ranks; 0: not told."""
    unreached: tuple[NcclRank, ...] = ()
    """Those that did not tell NCCL what they do; at most 64."""
    launches: tuple[Launches, ...] = ()
    moves: bool = False
    """It was asked twice, half a second apart, and told something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDump:
    """A rank at one moment."""

    rank: Rank
    processes: tuple[ProcessDump, ...] = ()
    """Its own first; empty: it has none now."""
    ended: bool = False
    """Its process has ended."""
    printed_s: Seconds | None = None
    """Seconds since it printed something; null: it has not."""
    quiet_s: Seconds | None = None
    """Seconds since its last sign of life; null: that was not watched."""
    cpu_percent: Count | None = None
    """CPU time of all its processes during the dump."""
    connections: tuple[StuckConnection, ...] = ()
    collectives: tuple[Collective, ...] = ()
    """The newest first; empty: no flight recorder told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDump:
    """All ranks of a node."""

    run: str
    node: str
    time: Seconds
    """When it was taken, by the node's clock."""
    ranks: Annotated[tuple[RankDump, ...], Bounds(0, 4096)] = ()
    throttled: Annotated[tuple[str, ...], Bounds(0, 1024)] = ()
    """Each throttled GPU in words; empty: none, or the driver did not answer."""
    addresses: tuple[str, ...] = ()
    """The node's own, by which others' connections name it."""
    timed_out: bool = False
    """Taken when a rank had waited in vain for another, and ended: those that live did not."""
    communicators: tuple[Communicator, ...] = ()
    """Of all nodes; only the master asks NCCL."""
    unheard: tuple[str, ...] = ()
    """What NCCL and PyTorch could have told but did not, and why, in words."""
