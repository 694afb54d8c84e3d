"""A port for a server of a test."""

from __future__ import annotations

import socket


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of an address of this machine that is free at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
