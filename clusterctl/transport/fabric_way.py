"""Fabric's `Connection` over a transport that is open: no second login, no lax host keys."""

from __future__ import annotations

from collections.abc import Callable

import fabric
import paramiko

from clusterctl.transport.interface import Connection
from clusterctl.transport.ssh import SshConnection


class SharedConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection that uses the pool's: closing it leaves that one open for everybody else."""

    _sftp: paramiko.SFTPClient | None

    def open(self) -> None:
        """Use the pool's connection; a new one if it broke.

        Raises:
            CouldNotTell: the node cannot be reached.
        """
        # Fabric must never connect by itself, for it trusts any host key.
        if not self.is_connected:
            self._use(self._renew().transport)

    def close(self) -> None:
        """Close this connection's file transfers only."""
        if self._sftp is not None:
            self._sftp.close()
            self._sftp = None

    def _use(self, transport: paramiko.Transport) -> None:
        self.client._transport = transport  # noqa: SLF001  (Fabric has no other way in)
        self.transport = transport
        self._sftp = None


def over(connection: Connection, renew: Callable[[], Connection]) -> SharedConnection:
    """Return Fabric's connection that uses ours.

    Args:
        connection: ours.
        renew: gives one that works, once this one is broken.

    Raises:
        TypeError: ours is not paramiko's.
    """
    if not isinstance(connection, SshConnection):
        kind = "this machine itself" if connection.node.local else "reached by the system's ssh"
        raise TypeError(f"it is {kind}")
    endpoint = connection.endpoint
    found = SharedConnection(
        endpoint.hostname,
        user=endpoint.user,
        port=endpoint.port,
        config=fabric.Config(lazy=True),
        connect_kwargs={"allow_agent": False, "look_for_keys": False},
    )
    # Fabric's own `__setattr__` would take it for configuration.
    object.__setattr__(found, "_renew", renew)
    found._use(connection.transport)  # noqa: SLF001  (made above)
    return found
