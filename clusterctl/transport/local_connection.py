"""The node that is this machine: the same agent in a child process, no SSH."""

from __future__ import annotations

import dataclasses
import math
import sys

from clusterctl.inventory.cluster import Node
from clusterctl.transport import agent
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.interface import Call, Connection, Request, Timeouts
from clusterctl.transport.stream import ProcessStream
from clusterctl.transport.translate_errors import translated


class LocalConnection(Connection):
    """Runs operations on this machine, through the same command and the same frames."""

    def __init__(self, node: Node, *, timeouts: Timeouts) -> None:
        """Take the node; there is nothing to open."""
        # The interpreter that runs us is one more that is known to be there.
        self.node = dataclasses.replace(node, python=node.python or sys.executable)
        self._timeouts = timeouts

    @property
    def alive(self) -> bool:
        """This machine is always here."""
        return True

    def call(self, request: Request, *, timeout: float = math.inf) -> Call:
        """Start an operation in a child process."""
        with translated("exec", self.node.name):
            stream = ProcessStream(["/bin/sh", "-c", agent.COMMAND])
        return AgentCall(self.node, stream, request, timeouts=self._timeouts, timeout=timeout)

    def close(self) -> None:
        """Nothing is held open between calls."""
