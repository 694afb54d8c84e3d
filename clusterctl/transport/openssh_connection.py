"""A node over the system's ssh, for what paramiko cannot do: Kerberos, security keys, certificates.

One ControlMaster a node; every call is a session through it.
"""

from __future__ import annotations

from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.connection import Connection
from clusterctl.transport.control_master import ControlMaster
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.jump_hosts import JumpHosts
from clusterctl.transport.ssh_config import Endpoint
from clusterctl.transport.stream import ExitInfo, ProcessStream, Stream
from clusterctl.transport.translate_errors import translated

SSH_FAILED = 255
"""ssh's own exit status for anything that went wrong with the connection."""


class OpensshStream(ProcessStream):
    """An `ssh` that runs a command through a master."""

    def ending(self) -> ExitInfo:
        """Say how it ended; ssh's own failure means that the way broke."""
        ending = super().ending()
        if ending.exit_code != SSH_FAILED:
            return ending
        cause = printable_words(ending.errors) or "ssh lost the connection"
        return ExitInfo(connected=False, errors=ending.errors, cause=cause)


class OpensshConnection(Connection):
    """One ControlMaster and what goes through it."""

    def __init__(self, node: Node, master: ControlMaster, timeouts: Timeouts) -> None:
        """Take an open master over."""
        super().__init__(node, timeouts)
        self._master = master

    @property
    def alive(self) -> bool:
        """The master runs."""
        return self._master.running

    def start_agent(self) -> Stream:
        """Start the agent in a session of its own."""
        with translated("open", self.node.host):
            return OpensshStream(self._master.argv(command=agent.COMMAND))

    def close(self) -> None:
        """Close the connection."""
        self._master.close()


def connect(
    node: Node, endpoint: Endpoint, jumps: JumpHosts, timeouts: Timeouts
) -> OpensshConnection:
    """Let the system's ssh connect and log in; it reads its ssh_config itself.

    Jump hosts of the inventory are ours: ssh would reach them without our options and keys.

    Raises:
        NodeError: the node could not be reached, or did not let us in.
    """
    options: list[str] = []
    settings = (
        ("-l", node.ssh.user),
        ("-p", node.ssh.port),
        ("-i", node.ssh.identity and endpoint.identity),
    )
    for flag, value in settings:
        if value is not None:
            options += [flag, str(value)]
    through = None
    if node.ssh.jump is not None and endpoint.jump:
        through = jumps.open(endpoint, endpoint.jump)
    elif node.ssh.jump is not None:
        options += ["-o", "ProxyCommand=none"]
    master = jumps.log_in(endpoint, node.host, options, name=endpoint.target, through=through)
    return OpensshConnection(node, master, timeouts)
