"""Chooses the ports of a run: where its ranks meet, and where NCCL tells what it knows."""

import zlib

from clusterctl.facts.nodefacts import NodeFacts

FIRST = 29500
"""PyTorch's own default, where the search starts."""

LAST = 29999

RAS_PORTS = range(28100, FIRST)
"""Near NCCL's own, which programs outside of clusterctl use, and below the kernel's."""


def choose_port(
    wanted: int | None, master: NodeFacts | None, *, but: int | None = None
) -> tuple[int, str]:
    """Return the port and the reason: the one that is set, else the first free one.

    `but` is a port that is known to be unusable.
    """
    if wanted is not None:
        return wanted, "set by you"
    listeners = (master.listeners if master is not None else None) or ()
    taken = {listener.port for listener in listeners} | {but}
    # A run that has just started does not listen yet.
    held = {part for run in (master.sharing if master else ()) for part in run.holds}
    taken |= {port for port in range(FIRST, LAST + 1) if f"port-{port}" in held}
    free = [port for port in range(FIRST, LAST + 1) if port not in taken]
    low, high = (master.ephemeral_ports if master is not None else None) or (32768, 60999)
    # If all these ports are ephemeral ones, take one of them.
    port = next((p for p in free if not low <= p <= high), next(iter(free), FIRST))
    if not free:
        return port, f"PyTorch's default; {FIRST} to {LAST} are all in use"
    if master is None or master.listeners is None:
        return port, "PyTorch's default; the ports in use on the master are unknown"
    return port, "PyTorch's default" if port == FIRST else f"the first free port from {FIRST}"


def choose_ras_port(run: str, node: NodeFacts) -> int:
    """Return where NCCL tells on a node what it knows of a run: for each run another port."""
    taken = {listener.port for listener in node.listeners or ()}
    first = zlib.crc32(run.encode()) % len(RAS_PORTS)
    ports: tuple[int, ...] = (*RAS_PORTS[first:], *RAS_PORTS[:first])
    return next((port for port in ports if port not in taken), ports[0])
