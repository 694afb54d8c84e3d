"""Fabric's `Connection` over a transport that is open: no second login, no lax host keys."""

from __future__ import annotations

import fabric

from clusterctl.transport.interface import Connection
from clusterctl.transport.ssh import SshConnection


def over(connection: Connection) -> fabric.Connection:
    """Return Fabric's connection that uses ours.

    Raises:
        TypeError: ours is not paramiko's.
    """
    if not isinstance(connection, SshConnection):
        kind = "this machine itself" if connection.node.local else "reached by the system's ssh"
        raise TypeError(f"it is {kind}")
    endpoint = connection.endpoint
    # No ssh_config and no keys: Fabric shall never connect by itself, for it trusts any host key.
    found = fabric.Connection(
        endpoint.hostname,
        user=endpoint.user,
        port=endpoint.port,
        config=fabric.Config(lazy=True),
        connect_kwargs={"allow_agent": False, "look_for_keys": False},
    )
    found.client._transport = connection.transport  # noqa: SLF001  (Fabric has no other way in)
    found.transport = connection.transport
    return found
