"""A port for a server of a test."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of an address of this machine that is free at this moment.

    It is not an ephemeral one (Linux: from 32768 on), which a connection could take meanwhile.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        port = random.randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, port))
            return port
