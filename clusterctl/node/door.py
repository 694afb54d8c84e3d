"""The held lock, answering: doorbell and control of the supervisor that holds the machine.

Who holds it, anyone may ask; the rest is for the same user and root.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import traceback
from typing import Any, Callable, Dict

from clusterctl.node import lock
from clusterctl.node.listener import Listener, Strangers
from clusterctl.node.lock import LINE_LIMIT, Peer
from clusterctl.node.reactor import Reactor

STRANGERS, OWN = 32, 4096
"""How many connections of other users, and of ours, may wait to ask: ranks report all at once."""


class Door:
    """The held lock, answering."""

    def __init__(self, name: str) -> None:
        """Take the lock.

        Raises:
            OSError: EADDRINUSE: it is held.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind("\0" + name)
        except OSError:
            self._socket.close()
            raise
        self._socket.listen(128)
        self._socket.setblocking(False)

    @classmethod
    def take(cls, name: str) -> Door:
        """Take the machine's lock, or say who has it.

        Raises:
            OperationError: `busy`: a run is on this machine; `holder` says which.
        """
        for _ in range(2):
            try:
                return cls(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            holder = lock.ask(name, {"ask": "who"})
            if holder is not None:
                raise lock.busy(holder)
        raise lock.busy({})

    def answer(
        self,
        reactor: Reactor,
        who: Dict[str, Any],
        on_request: Callable[[Dict[str, Any], Peer], Dict[str, Any]],
    ) -> None:
        """Answer everyone who asks, from now on.

        Args:
            reactor: to live in.
            who: what anyone may know.
            on_request: gives the answer to this user's and root's other requests.
        """

        def serve(request: Dict[str, Any], peer: Peer) -> Dict[str, Any]:
            if request.get("ask") == "who":
                return who
            if is_stranger(peer):
                return {"error": "only uid %d and root may ask that" % os.getuid()}
            return on_request(request, peer)

        self._reactor, self._serve = reactor, serve
        self._strangers, self._own = (
            Strangers(reactor, most=most, seconds=lock.ANSWER_SECONDS) for most in (STRANGERS, OWN)
        )
        self._listener = Listener(reactor, self._socket, self._take)

    def close(self) -> None:
        """Give the lock back."""
        self._listener.close()

    def _take(self, connection: socket.socket) -> None:
        waiting = self._strangers if is_stranger(Peer.of(connection)) else self._own
        connection.setblocking(False)

        def close() -> None:
            self._reactor.forget(connection.fileno())
            connection.close()

        def read() -> None:
            waiting.remove(close)
            self._answer(connection)
            close()

        waiting.add(close)
        self._reactor.watch(connection.fileno(), read)

    def _answer(self, connection: socket.socket) -> None:
        # A request is one write of one short line to a local socket: it arrives whole.
        try:
            peer = Peer.of(connection)
            request = json.loads(connection.recv(LINE_LIMIT))
            if isinstance(request, dict):
                connection.send(json.dumps(self._serve(request, peer)).encode() + b"\n")
        except (OSError, ValueError):
            pass  # it left, or it is not ours
        except Exception:  # noqa: BLE001  (no question may end the run; the log has it)
            traceback.print_exc()


def is_stranger(peer: Peer) -> bool:
    """Tell whether a process is another user's; root is none."""
    return peer.uid not in (0, os.getuid())
