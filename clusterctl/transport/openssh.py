"""A node over the system's ssh, for what paramiko cannot do: Kerberos, security keys, certificates.

One ControlMaster a node; every call is a session through it.
"""

from __future__ import annotations

import re

from clusterctl.inventory.cluster import Node
from clusterctl.transport import agent
from clusterctl.transport.calls import AgentCall
from clusterctl.transport.control_master import ControlMaster, Folder, Policy
from clusterctl.transport.failure import Failed, safe, translated
from clusterctl.transport.interface import Call, Connection, Request, Timeouts
from clusterctl.transport.known_hosts import KnownHosts, fingerprint
from clusterctl.transport.ssh_config import Endpoint
from clusterctl.transport.stream import Ending, ProcessStream
from clusterctl.transport.trust import tell_accepted

SSH_FAILED = 255
"""ssh's own exit status for anything that went wrong with the connection."""


class OpensshStream(ProcessStream):
    """An `ssh` that runs a command through a master."""

    def ending(self) -> Ending:
        """Say how it ended; ssh's own failure means that the way broke."""
        ending = super().ending()
        if ending.exit_code != SSH_FAILED:
            return ending
        cause = safe(ending.errors) or "ssh lost the connection"
        return Ending(connected=False, errors=ending.errors, cause=cause)


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

    def call(self, request: Request, *, timeout: float | None = None) -> Call:
        """Start an operation in a session of its own."""
        with translated("open", self.node.host):
            stream = OpensshStream(self._master.argv(command=agent.COMMAND))
        return AgentCall(self.node, stream, request, timeouts=self._timeouts, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._master.close()


def connect(
    node: Node, endpoint: Endpoint, *, folder: Folder, policy: Policy, timeouts: Timeouts
) -> OpensshConnection:
    """Let the system's ssh connect and log in; it reads its ssh_config itself.

    Raises:
        Failed: it did not come to that.
    """
    options = policy.options(endpoint.known_hosts)
    settings = (
        ("-l", node.ssh.user),
        ("-p", node.ssh.port),
        ("-i", node.ssh.identity and endpoint.identity),
        ("-J", node.ssh.jump),
    )
    for flag, value in settings:
        if value is not None:
            options += [flag, str(value)]
    master = folder.master(["--", node.host])
    try:
        master.open(options, timeouts=timeouts)
    except Failed:
        master.close()
        raise
    if policy.accept_new:
        _tell_accepted(master, policy)
    return OpensshConnection(node, master, timeouts)


def _tell_accepted(master: ControlMaster, policy: Policy) -> None:
    """Print the fingerprint of a key that OpenSSH recorded, for it names only the host."""
    for name in re.findall(r"Permanently added '([^']+)'", master.said()):
        for line in KnownHosts.load([policy.own_file]).lines(name.partition(",")[0]):
            shown = f"{line.key_type} {fingerprint(line.blob)}"
            tell_accepted(name, shown, policy.own_file)
