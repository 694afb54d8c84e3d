"""A listening socket that limits how many unauthenticated peers it holds, and for how long."""

from __future__ import annotations

import errno
import socket
import traceback
from collections import Counter
from typing import Callable, Dict, Tuple, Union

from clusterctl.node.event_loop import Callback, EventLoop, Timer

MAX_ACCEPTS = 64
"""Connections to take in before other work gets its turn."""
SHORTAGE_SECONDS = 1.0
"""How long to leave the others in the queue when the machine has no descriptor to spare."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


PeerOrigin = Union[str, int]
"""Where a connection comes from: a network address, or a local user."""


class UnauthenticatedPeers:
    """Connections that have not shown who they are: few at a time, and none for long.

    If there are too many, the origin with the most loses its oldest. So one that connects all the
    time takes no place from the others.
    """

    def __init__(self, loop: EventLoop, *, most: int, seconds: float) -> None:
        self._loop, self._most, self._seconds = loop, most, seconds
        self._waiting: Dict[Callback, Tuple[PeerOrigin, Timer]] = {}
        """By the call that closes the connection, the oldest first."""
        self._origins: Counter[PeerOrigin] = Counter()
        """How many wait of each: a flood must not make each of its connections cost more."""

    def add(self, close: Callback, origin: PeerOrigin) -> None:
        """Call `close` in time, or earlier if too many others come; unless it is removed."""
        timer = self._loop.call_later(self._seconds, lambda: self._close(close))
        self._waiting[close] = origin, timer
        self._origins[origin] += 1
        if len(self._waiting) > self._most:
            largest = max(self._origins, key=lambda each: self._origins[each])
            self._close(next(c for c, (each, _) in self._waiting.items() if each == largest))

    def remove(self, close: Callback) -> None:
        """Keep this connection: it has shown who it is, or it is closed."""
        if close in self._waiting:
            origin, timer = self._waiting.pop(close)
            timer.cancel()
            self._origins[origin] -= 1
            if not self._origins[origin]:
                del self._origins[origin]

    def _close(self, close: Callback) -> None:
        self.remove(close)
        close()


class Listener:
    """Takes connections in, as long as it is open."""

    def __init__(
        self,
        loop: EventLoop,
        listening: socket.socket,
        on_connection: Callable[[socket.socket, str], None],
    ) -> None:
        """Call back with each connection of a socket that already listens, and its address."""
        self._loop, self._socket, self._on_connection = loop, listening, on_connection
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Take in no more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_descriptor(self._socket.fileno())
            self._socket.close()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_descriptor(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                connection, address = self._socket.accept()
            except OSError as error:
                if error.errno in _SHORTAGE:  # it stays readable: to try at once would spin
                    self._loop.remove_descriptor(self._socket.fileno())
                    self._loop.call_later(SHORTAGE_SECONDS, self._watch)
                elif error.errno == errno.ECONNABORTED:
                    continue
                return
            try:
                self._on_connection(connection, address[0] if address else "")
            except Exception:  # noqa: BLE001  (one connection may not end the run; the log has it)
                traceback.print_exc()
                connection.close()
