"""Fabric's `Connection` over a transport that is open: no second login, no lax host keys."""

import getpass
from collections.abc import Callable

import fabric
import paramiko
from invoke.runners import Local, Runner

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Node
from clusterctl.transport.connection import Connection
from clusterctl.transport.ssh.paramiko_connection import ParamikoConnection


class _NodeConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection that has the name and address of the inventory."""

    def __init__(self, node: Node) -> None:
        super().__init__(
            node.host,
            user=node.ssh.user or getpass.getuser(),
            port=node.ssh.port or 22,
            config=fabric.Config(lazy=True),
            connect_kwargs={"allow_agent": False, "look_for_keys": False},
        )


class SharedFabricConnection(_NodeConnection):
    """A connection that uses the pool's: closing it leaves that one open for everybody else."""

    _sftp: paramiko.SFTPClient | None

    def __init__(self, node: Node, connect: Callable[[], Connection]) -> None:
        """Prepare; `connect` returns the pool's connection, which may be a new one."""
        super().__init__(node)
        # Fabric's own `__setattr__` would take it for configuration.
        object.__setattr__(self, "_connect", connect)

    def open(self) -> None:
        """Use the pool's connection, a new one if it broke; CouldNotTell without an answer."""
        # Fabric must never connect by itself, for it trusts any host key.
        if self.is_connected:
            return
        connection = self._connect()
        assert isinstance(connection, ParamikoConnection), "the pool offers it for paramiko's only"
        self.client._transport = connection.transport  # noqa: SLF001  (Fabric has no other way in)
        self.transport = connection.transport
        self._sftp = None

    def close(self) -> None:
        """Close this connection's file transfers only."""
        if self._sftp is not None:
            self._sftp.close()
            self._sftp = None


class _LocalRunner(Local):
    """Runs a command here, and closes its pipes: Invoke leaves that to the garbage collector."""

    def stop(self) -> None:
        super().stop()
        process = None if self.using_pty else getattr(self, "process", None)
        if process is not None:
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()


class LocalFabricConnection(_NodeConnection):
    """A connection to this machine: it runs commands here, without SSH; it copies no files."""

    is_connected = True

    def open(self) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """There is nothing to close."""

    def sftp(self) -> paramiko.SFTPClient:
        """Refuse to copy files."""
        raise UsageError(f"{self.host}: is this machine, to which no files are copied")

    def _remote_runner(self) -> Runner:
        return _LocalRunner(context=self)
