"""The machine: how it answered, its clock, its limits, and which runs hold it."""

from __future__ import annotations

from clusterctl.values import dataclass

UNLIMITED = -1
"""A resource limit that is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshStatus:
    """How the node answered SSH and ping."""

    state: str = "ok"
    """`transport.interface.State`."""
    phase: str = ""
    words: str = ""
    hint: str = ""
    seconds: float | None = None
    connect_s: float | None = None
    """Until the SSH server accepted the login; None if the connection was there before."""
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
class RunLock:
    """The run that holds the node."""

    run: str = ""
    """Empty: no process."""
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
    nofile_hard: int | None = None
    """A run raises the soft limits on files and processes to the hard ones."""
    processes_hard: int | None = None
    stack: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A line of the kernel log."""

    age_s: float | None
    """Seconds since it was written; None: the machine's uptime is unknown."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """The lines of the kernel log that `request.KERNEL_LOG` asks for, the oldest first."""

    source: str
    """`kmsg`, `dmesg` or `journal`."""
    lines: tuple[KernelLine, ...] = ()
