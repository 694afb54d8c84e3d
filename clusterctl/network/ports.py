"""The port of the rendezvous on the master."""

from __future__ import annotations

from clusterctl.facts.nodefacts import NodeFacts

FIRST = 29500
"""PyTorch's own default; the search goes on from here."""

LAST = 29999


def choose_port(wanted: int | None, master: NodeFacts | None) -> tuple[int, str]:
    """Return the port and why: what the person set, else the first that is free there."""
    if wanted is not None:
        return wanted, "asked for"
    if master is None or master.listeners is None:
        return FIRST, "PyTorch's default; what listens on the master is unknown"
    taken = {listener.port for listener in master.listeners}
    low, high = master.ephemeral_ports or (32768, 60999)
    for port in range(FIRST, LAST + 1):
        if port not in taken and not low <= port <= high:
            why = "PyTorch's default" if port == FIRST else f"the first free one from {FIRST}"
            return port, why
    return FIRST, f"PyTorch's default; {FIRST} to {LAST} are all taken"
