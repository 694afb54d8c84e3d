"""What all of a command's connections by paramiko share: the keys, and turns at busy servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from clusterctl.inventory.cluster import Node
from clusterctl.transport import paramiko_connection
from clusterctl.transport.host_keys import HostKeyVerifier
from clusterctl.transport.interface import Connection, Timeouts
from clusterctl.transport.keys import Keyring
from clusterctl.transport.ssh_config import Endpoint

LOGINS_AT_ONCE = 8
"""Connections that may be logging in at one endpoint: sshd drops more than ten (MaxStartups)."""


class ParamikoConnector:
    """Opens connections by paramiko; safe from several threads."""

    def __init__(self, trust: HostKeyVerifier, timeouts: Timeouts) -> None:
        """Prepare; a key is read when it is first offered."""
        self._trust = trust
        self._timeouts = timeouts
        self._keyring = Keyring()
        self._slots: dict[str, threading.Semaphore] = {}
        self._lock = threading.Lock()

    def connect(
        self, node: Node, endpoint: Endpoint, dial: Callable[[], socket.socket]
    ) -> Connection:
        """Connect and log in.

        Raises:
            NodeError: it did not come to that.
        """
        with self._lock:
            slots = self._slots.setdefault(endpoint.target, threading.Semaphore(LOGINS_AT_ONCE))
        return paramiko_connection.connect(
            node,
            endpoint,
            dial=dial,
            keyring=self._keyring,
            trust=self._trust,
            timeouts=self._timeouts,
            slots=slots,
        )

    def refresh(self) -> None:
        """Read again the keys that could not be used, and ask the agents again."""
        self._keyring.refresh()

    def close(self) -> None:
        """Let the agents go."""
        self._keyring.close()
