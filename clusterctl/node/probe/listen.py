"""Listeners with a secret: a program that connects without it is not part of this check.

The caller connects and says its half of the check's nonce. The listener answers with the other
half and `seen_as`, the caller's address, and closes; to anything else it answers nothing.
With a `padding` a second frame of so many bytes follows. Each message is a frame of `wire`.
"""

from __future__ import annotations

import _socket
import errno
import os

from clusterctl.node.address_family import address_family
from clusterctl.node.listener import ListenerThread, UnauthenticatedPeers
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from clusterctl.node.event_loop import Callback

HELLO_SECONDS = 2.0
"""How long a caller has for its half of the word, however it sends it."""
BACKLOG = 256
MAX_UNAUTHENTICATED = 256
"""How many of them there may be at a time."""
MAX_FOREIGN_ADDRESSES = 64
"""Addresses to remember."""


def challenge_and_response(nonce: str) -> List[str]:
    """Return what the caller says and what the listener answers: an echo knows only one."""
    middle = len(nonce) // 2
    return [nonce[:middle], nonce[middle:]]


def hello(challenge: str) -> bytes:
    """Return the caller's message; a listener compares the bytes, and reads no other."""
    return Message({"hello": challenge}).encode()


class _Caller:
    """One that connected and has not said its half of the word yet."""

    def __init__(
        self,
        connection: _socket.socket,
        nonce: str,
        address: str,
        padding: int,
        on_foreign: Callback,
    ) -> None:
        self._socket, self._padding, self._on_foreign = connection, padding, on_foreign
        challenge, response = challenge_and_response(nonce)
        self._challenge = hello(challenge)
        answer = {"hello": response, "seen_as": address, "padding": padding}
        self._answer = Message(answer).encode()
        self._received = b""

    def hear(self) -> Optional[bool]:
        """Read, and answer who knows the word; None: it has not said all of it."""
        part = self._socket.recv(len(self._challenge) - len(self._received))
        self._received += part
        if self._received == self._challenge:
            self._socket.sendall(self._answer)
            if self._padding:
                self._socket.sendall(Message({}, bytes(self._padding)).encode())
            return False
        if self._challenge.startswith(self._received) and part:
            return None
        if self._received:
            self._on_foreign()
        return False


class Listeners:
    """The listening sockets of this node, each served by one thread."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._served: List[ListenerThread] = []
        self._foreign: List[str] = []

    def listen(self, wanted: Dict[str, Any]) -> Dict[str, Any]:
        """Listen as asked.

        Args:
            wanted: `key`, `address`, `port` (0: any). A port that is given is bound on all
                addresses, as PyTorch's TCPStore does, so that what would disturb it is found.
                `padding`: bytes that follow the answer to a caller, to fill a packet.

        Returns:
            The same with the port that was bound, or `error` and `holder`.
        """
        port, address = wanted["port"], wanted["address"]
        listener = _socket.socket(address_family(address), _socket.SOCK_STREAM)
        try:
            # As TCPStore: connections of an earlier run in TIME_WAIT do not matter.
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind(("" if port else address, port))
            # The padding leaves at once, as a packet of its own: the answer must not depend on it.
            listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            listener.listen(BACKLOG)
            served = self._serve(listener, wanted.get("padding", 0))
        except OSError as error:
            listener.close()
            problem = {"port": None, "error": os.strerror(error.errno or 0), "holder": ""}
            if error.errno == errno.EADDRINUSE:
                from clusterctl.node.probe.port_owner import port_owner  # noqa: PLC0415  (rare)

                problem["holder"] = port_owner(port)
            return {**wanted, **problem}
        self._served.append(served)
        return {**wanted, "port": listener.getsockname()[1]}

    def foreign(self) -> List[str]:
        """Return the addresses that connected without knowing the word."""
        return sorted(self._foreign)

    def close(self) -> None:
        """Stop listening."""
        for served in self._served:
            served.close()

    def _serve(self, listener: _socket.socket, padding: int) -> ListenerThread:
        def greet(peers: UnauthenticatedPeers, connection: _socket.socket, address: str) -> None:
            caller = _Caller(
                connection, self._nonce, address, padding, lambda: self._note_foreign(address)
            )
            peers.greet(connection, address, caller.hear)

        return ListenerThread(listener, greet, most=MAX_UNAUTHENTICATED, seconds=HELLO_SECONDS)

    def _note_foreign(self, address: str) -> None:
        if address not in self._foreign and len(self._foreign) < MAX_FOREIGN_ADDRESSES:
            self._foreign.append(address)
