"""Which way leads to a node, and what all ways share: keys, known hosts, ssh_config, jump hosts."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.inventory.cluster import Node
from clusterctl.transport import openssh, sockets
from clusterctl.transport.control_master import Folder, Policy
from clusterctl.transport.interface import Connection, Timeouts
from clusterctl.transport.jump import Jumps, run_proxy_command
from clusterctl.transport.lean import without_invoke
from clusterctl.transport.local import LocalConnection
from clusterctl.transport.sockets import QuickSocket
from clusterctl.transport.ssh_config import Endpoint, Oracle
from clusterctl.transport.trust import Trust

if TYPE_CHECKING:
    from clusterctl.transport.paramiko_way import ParamikoWay


class Ways:
    """Opens connections; safe from several threads."""

    def __init__(self, cluster: str, *, timeouts: Timeouts, accept_new: bool) -> None:
        """Prepare what the ways share; files are read when they are first needed."""
        self._timeouts = timeouts
        self._oracle = Oracle()
        self._trust = Trust(cluster, accept_new=accept_new)
        self._connecting = 0
        self._policy = Policy(own_file=self._trust.own_file, accept_new=accept_new)
        self.folder = Folder()
        """A private one with a short path, for sockets."""
        self._jumps = Jumps(self.folder, self._policy, timeouts=timeouts)
        self._paramiko: ParamikoWay | None = None
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Let the next command read ssh_config, known hosts and keys as they are then.

        Jump hosts that could not be reached are tried again. Not while a thread is connecting.
        """
        with self._lock:
            if self._connecting:
                return
            self._oracle.refresh()
            self._trust.refresh()
            self._jumps.refresh()
            if self._paramiko is not None:
                self._paramiko.refresh()

    def connect(self, node: Node) -> Connection:
        """Open the way that the inventory says.

        Raises:
            Failed: the node cannot be reached.
        """
        with self._lock:
            self._connecting += 1
        try:
            return self._connect(node)
        finally:
            with self._lock:
                self._connecting -= 1

    def _connect(self, node: Node) -> Connection:
        if node.local:
            return LocalConnection(node, timeouts=self._timeouts)
        endpoint = self._oracle.resolve(node)
        if node.ssh.via == "openssh":
            return openssh.connect(
                node,
                endpoint,
                folder=self.folder,
                policy=self._policy,
                jumps=self._jumps,
                timeouts=self._timeouts,
            )
        return self._by_paramiko().connect(node, endpoint, partial(self._dial, endpoint))

    def close(self) -> None:
        """Let go of what the ways share."""
        if self._paramiko is not None:
            self._paramiko.close()
        self.folder.close()

    def _dial(self, endpoint: Endpoint) -> QuickSocket:
        if endpoint.jump is not None:
            return self._jumps.dial(endpoint, endpoint.jump)
        if endpoint.proxy_command is not None:
            return run_proxy_command(endpoint)
        limit = endpoint.connect_timeout or self._timeouts.connect
        return sockets.connect(endpoint.hostname, endpoint.port, timeout=limit)

    def _by_paramiko(self) -> ParamikoWay:
        with self._lock:
            if self._paramiko is None:
                # Its import takes longer than all else that a command imports together.
                with without_invoke():
                    from clusterctl.transport.paramiko_way import ParamikoWay  # noqa: PLC0415

                self._paramiko = ParamikoWay(self._trust, self._timeouts)
            return self._paramiko
