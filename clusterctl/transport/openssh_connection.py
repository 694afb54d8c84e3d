"""A node over the system's ssh, for what paramiko cannot do: Kerberos, security keys, certificates.

One ControlMaster a node; every call is a session through it.
"""

from __future__ import annotations

import math

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.control_master import ControlFolder, ControlMaster, HostKeyPolicy
from clusterctl.transport.interface import Call, Connection, Request, Timeouts
from clusterctl.transport.jump_hosts import JumpHosts
from clusterctl.transport.ssh_config import Endpoint
from clusterctl.transport.stream import ExitInfo, ProcessStream
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
        self.node = node
        self._master = master
        self._timeouts = timeouts

    @property
    def alive(self) -> bool:
        """The master runs."""
        return self._master.running

    def call(self, request: Request, *, timeout: float = math.inf) -> Call:
        """Start an operation in a session of its own."""
        with translated("open", self.node.host):
            stream = OpensshStream(self._master.argv(command=agent.COMMAND))
        return AgentCall(self.node, stream, request, timeouts=self._timeouts, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._master.close()


def connect(
    node: Node,
    endpoint: Endpoint,
    *,
    folder: ControlFolder,
    policy: HostKeyPolicy,
    jumps: JumpHosts,
    timeouts: Timeouts,
) -> OpensshConnection:
    """Let the system's ssh connect and log in; it reads its ssh_config itself.

    Jump hosts of the inventory are ours: ssh would reach them without our options and keys.

    Raises:
        NodeError: it did not come to that.
    """
    options = policy.options(endpoint.known_hosts)
    settings = (
        ("-l", node.ssh.user),
        ("-p", node.ssh.port),
        ("-i", node.ssh.identity and endpoint.identity),
    )
    for flag, value in settings:
        if value is not None:
            options += [flag, str(value)]
    gate = None
    if node.ssh.jump is not None:
        gate = jumps.open(endpoint, endpoint.jump) if endpoint.jump else None
        options += ["-o", f"ProxyCommand={gate.proxy_command if gate else 'none'}"]
    master = folder.master(["--", node.host])
    try:
        master.open(options, timeouts=timeouts)
    except NodeError as failure:
        master.close()
        if gate is not None and failure.state in {"lost", "unreachable"}:
            raise gate.failure(endpoint.target, failure.message) from None
        raise
    policy.tell_accepted(master)
    return OpensshConnection(node, master, timeouts)
