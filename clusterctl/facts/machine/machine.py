"""How a machine answered, and its clock: what the controller itself measures."""

from __future__ import annotations

from clusterctl.values import dataclass


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
