"""Listeners with a secret: a program that connects without knowing it is somebody else's."""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import select
import time

from clusterctl.node.address_family import address_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

HANDSHAKE_SECONDS = 2.0
"""How long a caller has for its half of the word, however it sends it."""
POLL_SECONDS = 0.5
SHORTAGE_SECONDS = 0.05
BACKLOG = 256
MAX_PENDING_CLIENTS = 256
"""How many of them there may be at a time; then the oldest is closed."""
MAX_FOREIGN_ADDRESSES = 64
"""Addresses to remember."""


def challenge_and_response(nonce: str) -> List[bytes]:
    """Return what the caller says and what the listener answers: an echo knows only one."""
    middle = len(nonce) // 2
    return [nonce[:middle].encode(), nonce[middle:].encode()]


class PendingClient:
    """One that connected and has not said its half of the word yet."""

    def __init__(self, descriptor: int, address: str, padding: int) -> None:
        self.descriptor, self.address, self.padding = descriptor, address, padding
        self.socket = _socket.socket(fileno=descriptor)
        self.socket.setblocking(False)
        self.received = b""
        self.until = time.monotonic() + HANDSHAKE_SECONDS


class Listeners:
    """The listening sockets of this node, each served by one thread."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._sockets: List[_socket.socket] = []
        self._foreign: List[str] = []

    def listen(self, wanted: Dict[str, Any]) -> Dict[str, Any]:
        """Listen as asked.

        Args:
            wanted: `key`, `address`, `port` (0: any). A port that is given is bound on all
                addresses, as PyTorch's TCPStore does, so that what would disturb it is found.
                `padding`: bytes that follow the answer to a caller, as a packet of full size.

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
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            problem = {"port": None, "error": os.strerror(error.errno or 0), "holder": ""}
            if error.errno == errno.EADDRINUSE:
                from clusterctl.node.probe.port_owner import port_owner  # noqa: PLC0415  (rare)

                problem["holder"] = port_owner(port)
            return {**wanted, **problem}
        self._sockets.append(listener)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        _thread.start_new_thread(self._serve, (listener, poll, wanted.get("padding", 0)))
        return {**wanted, "port": listener.getsockname()[1]}

    def foreign(self) -> List[str]:
        """Return the addresses that connected without knowing the word."""
        return sorted(self._foreign)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._sockets:
            # close() alone leaves the port open while a thread waits for callers.
            try:  # noqa: SIM105  (start-up counts)
                listener.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass  # on some systems it is not connected
            listener.close()

    def _serve(self, listener: _socket.socket, poll: select.poll, padding: int) -> None:
        """Greet who connects, all in this thread, until the listener is closed."""
        clients: Dict[int, PendingClient] = {}
        while listener.fileno() >= 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * POLL_SECONDS)}
            over = [
                d for d, one in clients.items() if self._handshake_over(one, readable=d in ready)
            ]
            if listener.fileno() in ready:
                client = _accept(listener, padding)
                if client is not None:
                    clients[client.descriptor] = client
                    poll.register(client.descriptor, select.POLLIN)
                    over += list(clients)[: len(clients) - MAX_PENDING_CLIENTS]
            for descriptor in dict.fromkeys(over):
                poll.unregister(descriptor)
                clients.pop(descriptor).socket.close()
        for client in clients.values():
            client.socket.close()

    def _handshake_over(self, client: PendingClient, *, readable: bool) -> bool:
        """Read from a caller, and answer if it knows the word; tell whether it is over."""
        challenge, response = challenge_and_response(self._nonce)
        if time.monotonic() > client.until:
            return True  # a port scanner
        if not readable:
            return False
        try:
            part = client.socket.recv(len(challenge) - len(client.received))
            client.received += part
            if client.received == challenge:
                answer = "%s %d\n" % (client.address, client.padding)
                client.socket.sendall(response + answer.encode())
                if client.padding:
                    client.socket.sendall(bytes(client.padding))
                return True
        except OSError:
            return True  # it left: a port scanner, or a caller that has its answer
        if not challenge.startswith(client.received) or (client.received and not part):
            self._note_foreign(client.address)
            return True
        return not part

    def _note_foreign(self, address: str) -> None:
        if address not in self._foreign and len(self._foreign) < MAX_FOREIGN_ADDRESSES:
            self._foreign.append(address)


def _accept(listener: _socket.socket, padding: int) -> Optional[PendingClient]:
    """Take in the next caller; None: it left, or nobody can be taken in now."""
    try:
        descriptor, address = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    except OSError:
        time.sleep(SHORTAGE_SECONDS)  # no descriptor may be left: to try at once would spin
        return None
    return PendingClient(descriptor, str(address[0]), padding)
