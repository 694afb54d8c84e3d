"""A listening socket that strangers cannot use up: few of them at a time, and none for long."""

from __future__ import annotations

import errno
import socket
import traceback
from typing import Callable, Dict

from clusterctl.node.reactor import Callback, Reactor, Timer

MOST_A_TURN = 64
"""Connections to take in before other work gets its turn."""
SHORTAGE_SECONDS = 1.0
"""How long to leave the others in the queue when the machine has no descriptor to spare."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Strangers:
    """Connections that have not shown who they are. The oldest makes room for the newest."""

    def __init__(self, reactor: Reactor, *, most: int, seconds: float) -> None:
        self._reactor, self._most, self._seconds = reactor, most, seconds
        self._closing: Dict[Callback, Timer] = {}

    def add(self, close: Callback) -> None:
        """Call `close` in time, or earlier if too many others come; unless it is removed."""
        self._closing[close] = self._reactor.after(self._seconds, lambda: self._close(close))
        if len(self._closing) > self._most:
            self._close(next(iter(self._closing)))

    def remove(self, close: Callback) -> None:
        """Keep this connection: it has shown who it is, or it is closed."""
        timer = self._closing.pop(close, None)
        if timer is not None:
            timer.cancel()

    def _close(self, close: Callback) -> None:
        self.remove(close)
        close()


class Listener:
    """Takes connections in, as long as it is open."""

    def __init__(
        self,
        reactor: Reactor,
        listening: socket.socket,
        on_connection: Callable[[socket.socket], None],
    ) -> None:
        """Call back with each connection of a socket that already listens."""
        self._reactor, self._socket, self._on_connection = reactor, listening, on_connection
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Take in no more."""
        if self._socket.fileno() >= 0:
            self._reactor.forget(self._socket.fileno())
            self._socket.close()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._reactor.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno in _SHORTAGE:  # it stays readable: to try at once would spin
                    self._reactor.forget(self._socket.fileno())
                    self._reactor.after(SHORTAGE_SECONDS, self._watch)
                elif error.errno == errno.ECONNABORTED:
                    continue
                return
            try:
                self._on_connection(connection)
            except Exception:  # noqa: BLE001  (one connection may not end the run; the log has it)
                traceback.print_exc()
                connection.close()
