"""The port of the rendezvous on the master."""

from __future__ import annotations

from clusterctl.facts.nodefacts import NodeFacts

FIRST = 29500
"""PyTorch's own default; the search goes on from here."""

LAST = 29999


def choose_port(
    wanted: int | None, master: NodeFacts | None, *, but: int | None = None
) -> tuple[int, str]:
    """Return the port and why: what the person set, else the first that is free there.

    Args:
        wanted: what the person set.
        master: where it shall be free.
        but: a port that is known not to do.
    """
    if wanted is not None:
        return wanted, "asked for"
    listeners = (master.listeners if master is not None else None) or ()
    taken = {listener.port for listener in listeners} | {but}
    # A run that has just begun does not listen yet.
    held = {part for run in (master.sharing if master else ()) for part in run.holds}
    taken |= {port for port in range(FIRST, LAST + 1) if f"port-{port}" in held}
    free = [port for port in range(FIRST, LAST + 1) if port not in taken]
    low, high = (master.ephemeral_ports if master is not None else None) or (32768, 60999)
    # Where the kernel gives any port to clients, one of those has to do.
    port = next((p for p in free if not low <= p <= high), next(iter(free), FIRST))
    if not free:
        return port, f"PyTorch's default; {FIRST} to {LAST} are all taken"
    if master is None or master.listeners is None:
        return port, "PyTorch's default; what listens on the master is unknown"
    return port, "PyTorch's default" if port == FIRST else f"the first free one from {FIRST}"
