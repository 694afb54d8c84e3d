"""An open connection to a node: to this machine, or over the system's ssh."""

import dataclasses
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.agent_call import AgentCall, Stayed
from clusterctl.transport.interface import Call, Request, Timeouts
from clusterctl.transport.ssh.control_master import ControlMaster
from clusterctl.transport.stream import ExitInfo, ProcessStream, Stream
from clusterctl.transport.translate_errors import translated

STAYS_SECONDS = 50.0
"""An agent that has stayed for so long is about to end by itself."""
SSH_FAILED = 255
"""ssh's own exit status for anything that went wrong with the connection."""


class Connection(ABC):
    """An open connection to a node, shared by every call of a command."""

    def __init__(self, node: Node, timeouts: Timeouts) -> None:
        """Keep the node, and the limit of each phase of its calls."""
        self.node = node
        self._timeouts = timeouts
        self.in_turn: Callable[[], AbstractContextManager[object]] = nullcontext
        """Waits for a turn to start an agent; the connector sets it."""
        self.login_seconds = 0.0
        """How long the login took once its turn had come."""
        self._staying: list[Stayed] = []
        """Agents that wait for another request."""
        self._closed = False

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False: it is known to be broken, and another one is needed."""

    @abstractmethod
    def start_agent(self) -> Stream:
        """Start `agent.COMMAND` on the node.

        Raises:
            NodeError: it cannot be started.
        """

    def close(self) -> None:
        """Close the connection; what runs detached on the node lives on."""
        self._closed = True
        for each in self._staying:
            each.stream.close()

    def call(self, request: Request, *, timeout: float = math.inf) -> Call:
        """Start an operation of the agent on the node, in turn; wait until the agent speaks.

        Args:
            request: what to do.
            timeout: seconds for the whole of it, from when its turn has come.

        Raises:
            NodeError: no channel could be opened; `pool` turns it into the node's reply.
        """
        with ExitStack() as turn:
            turn.enter_context(self.in_turn())
            call = self._call_staying(request, timeout)
            if call is None:
                call = self._agent_call(self.start_agent(), request, timeout)
                call.await_agent()
            if request.turn_until:
                call.end_turn = turn.pop_all().close
            return call

    def _call_staying(self, request: Request, timeout: float) -> AgentCall | None:
        """Ask an agent that has stayed; None: there is none that takes the request."""
        with suppress(IndexError):  # another thread takes them too
            while True:
                stayed = self._staying.pop()
                if time.monotonic() - stayed.since < STAYS_SECONDS:
                    call = self._agent_call(stayed.stream, request, timeout, stayed=stayed)
                    if call.await_agent():
                        return call
                stayed.stream.close()
        return None

    def _agent_call(
        self, stream: Stream, request: Request, timeout: float, *, stayed: Stayed | None = None
    ) -> AgentCall:
        def keep(agent: Stayed) -> None:
            self._staying.append(agent)
            if self._closed:  # as after Ctrl-C, while a thread was still reading
                Connection.close(self)

        try:
            return AgentCall(
                self.node, stream, request, timeouts=self._timeouts, timeout=timeout,
                stayed=stayed, keep=keep,
            )  # fmt: skip
        except BaseException:
            stream.close()  # no call will close it
            raise


class LocalConnection(Connection):
    """Runs operations on this machine, through the same command and the same frames."""

    alive = True

    def __init__(self, node: Node, timeouts: Timeouts) -> None:
        """Take the node; there is nothing to open."""
        # The interpreter that runs us is one more that is known to be there.
        super().__init__(dataclasses.replace(node, python=node.python or sys.executable), timeouts)

    def start_agent(self) -> Stream:
        """Start the agent in a child process."""
        with translated("exec", self.node.name):
            return ProcessStream(["/bin/sh", "-c", agent.COMMAND])


class OpensshStream(ProcessStream):
    """An `ssh` that runs a command through a master."""

    def ending(self) -> ExitInfo:
        """Return how it ended; ssh's own failure means that the connection broke."""
        ending = super().ending()
        if ending.exit_code != SSH_FAILED:
            return ending
        cause = printable_words(ending.errors) or "ssh lost the connection"
        return ExitInfo(connected=False, errors=ending.errors, cause=cause)


class OpensshConnection(Connection):
    """A node over the system's ssh: one ControlMaster, and each call a session through it.

    For what paramiko cannot do: Kerberos, security keys, certificates.
    """

    def __init__(self, node: Node, master: ControlMaster, timeouts: Timeouts) -> None:
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
        super().close()
        self._master.close()
