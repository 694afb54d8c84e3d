"""Every listening socket of a node: it holds few unauthenticated peers, and none for long."""

from __future__ import annotations

import _socket
import _thread
import errno
import time

from clusterctl.node.event_loop import EventLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple, Union

    from clusterctl.node.event_loop import Callback, Timer

    PeerOrigin = Union[str, int, bytes]
    """Where a connection comes from: a network address, or a local user."""

MAX_ACCEPTS = 64
"""Connections to take in before other work gets its turn."""
SHORTAGE_SECONDS = 0.1
"""How long to leave the others in the queue when the machine has no descriptor to spare."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv4 address begins that an IPv6 socket shows."""
_PREFIX = 8
"""Bytes of the part of an IPv6 address that its owner cannot choose: a /64."""


class UnauthenticatedPeers:
    """Connections that have not shown who they are: few at a time, and none for long.

    If there are too many, the network with the most loses one: the oldest of its address with the
    most. So one that connects all the time takes no place from the others.
    """

    def __init__(self, loop: EventLoop, *, most: int, seconds: float) -> None:
        self._loop, self._most, self._seconds = loop, most, seconds
        self._waiting: Dict[Callback, Tuple[PeerOrigin, PeerOrigin, Timer]] = {}
        """Network and address, by the call that closes the connection, the oldest first."""
        self._networks: Dict[PeerOrigin, Dict[PeerOrigin, int]] = {}
        """How many wait of each address of each network."""
        self._sizes: Dict[PeerOrigin, int] = {}
        """How many wait of each network: a flood must not make each connection cost more."""

    def add(self, close: Callback, origin: PeerOrigin) -> None:
        """Call `close` in time, or earlier if too many others come; unless it is removed."""
        network, address = _network_and_address(origin)
        timer = self._loop.call_later(self._seconds, lambda: self._close(close))
        self._waiting[close] = network, address, timer
        addresses = self._networks.setdefault(network, {})
        addresses[address] = addresses.get(address, 0) + 1
        self._sizes[network] = self._sizes.get(network, 0) + 1
        if len(self._waiting) > self._most:
            network = max(self._sizes, key=self._sizes.__getitem__)
            most = max(self._networks[network].values())
            largest = {a for a, count in self._networks[network].items() if count == most}
            self._close(
                next(
                    each
                    for each, (other, address, _) in self._waiting.items()
                    if other == network and address in largest
                )
            )

    def remove(self, close: Callback) -> None:
        """Keep this connection: it has shown who it is, or it is closed."""
        if close in self._waiting:
            network, address, timer = self._waiting.pop(close)
            timer.cancel()
            for counts, key in ((self._networks[network], address), (self._sizes, network)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
            if network not in self._sizes:
                del self._networks[network]

    def greet(
        self,
        connection: _socket.socket,
        origin: PeerOrigin,
        hear: Callable[[], Optional[bool]],
        keep: Optional[Callback] = None,
    ) -> None:
        """Hold a connection until it is known whose it is.

        Args:
            connection: one that does not block.
            origin: where it comes from.
            hear: called when there is something to read. It returns None to be called again, True
                if the connection is authenticated, and False to close it. What it raises closes
                the connection too, without an answer.
            keep: takes an authenticated one over. What it raises closes the connection, and is
            logged if it
                is no OSError.
        """
        descriptor = connection.fileno()

        def close() -> None:
            self._loop.remove_descriptor(descriptor)
            connection.close()

        def ready() -> None:
            try:
                known = hear()
            except Exception:  # noqa: BLE001  (a stranger harms only itself, and fills no log)
                known = False
            if known is None:
                return
            self.remove(close)
            if not known or keep is None:
                close()
                return
            self._loop.remove_descriptor(descriptor)
            try:
                keep()
            except OSError:  # it has left
                connection.close()
            except Exception:  # noqa: BLE001  (one connection may not end the listener)
                _log_exception()
                connection.close()

        self.add(close, origin)
        self._loop.add_descriptor(descriptor, ready)

    def close(self) -> None:
        """Close all of them."""
        for each in list(self._waiting):
            self._close(each)

    def _close(self, close: Callback) -> None:
        self.remove(close)
        close()


def _network_and_address(origin: PeerOrigin) -> Tuple[PeerOrigin, PeerOrigin]:
    """Return what all addresses of one owner have in common, as it may have 2^64; and this one."""
    if not isinstance(origin, str) or ":" not in origin:
        return origin, origin
    address = _socket.inet_pton(_socket.AF_INET6, origin.partition("%")[0])
    return address if address.startswith(_MAPPED) else address[:_PREFIX], address


def _log_exception() -> None:
    import traceback  # noqa: PLC0415  (rare, and start-up counts)

    traceback.print_exc()


class Listener:
    """Takes connections in, as long as it is open."""

    def __init__(
        self,
        loop: EventLoop,
        listening: _socket.socket,
        on_connection: Callable[[Any, str], None],
    ) -> None:
        """Call back with each connection of a socket that already listens, and its address."""
        self._loop, self._socket, self._on_connection = loop, listening, on_connection
        listening.setblocking(False)
        self._watch()

    @property
    def closed(self) -> bool:
        """It takes in no more."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Take in no more."""
        if not self.closed:
            self._loop.remove_descriptor(self._socket.fileno())
            self._socket.close()

    def _watch(self) -> None:
        if not self.closed:
            self._loop.add_descriptor(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                descriptor, address = self._socket._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            except OSError as error:
                if error.errno in _SHORTAGE:  # it stays readable: to try at once would spin
                    self._loop.remove_descriptor(self._socket.fileno())
                    self._loop.call_later(SHORTAGE_SECONDS, self._watch)
                elif error.errno == errno.EINVAL:  # another thread has shut it down
                    self.close()
                elif error.errno == errno.ECONNABORTED:
                    continue
                return
            connection = type(self._socket)(fileno=descriptor)
            try:
                connection.setblocking(False)
                self._on_connection(connection, address[0] if address else "")
            except OSError:  # it has left
                connection.close()
            except Exception:  # noqa: BLE001  (one connection may not end the run; the log has it)
                _log_exception()
                connection.close()


class ListenerThread:
    """A listener that a thread of its own serves, for nodes without an event loop."""

    def __init__(
        self,
        listening: _socket.socket,
        on_connection: Callable[[UnauthenticatedPeers, Any, str], None],
        *,
        most: int,
        seconds: float,
    ) -> None:
        """Serve a socket that listens; raise OSError without a descriptor or a thread to spare."""
        self._socket, self._loop = listening, EventLoop()
        self._peers = UnauthenticatedPeers(self._loop, most=most, seconds=seconds)
        self._listener = Listener(
            self._loop, listening, lambda *connection: on_connection(self._peers, *connection)
        )
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def close(self) -> None:
        """Accept no more connections; the thread closes the socket."""
        try:  # noqa: SIM105  (start-up counts)
            self._socket.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed

    def _run(self) -> None:
        try:
            while not self._listener.closed:
                try:
                    self._loop.run_once()
                except Exception:  # noqa: BLE001  (no peer could connect any more; the log has it)
                    _log_exception()
                    time.sleep(SHORTAGE_SECONDS)
        finally:
            self._listener.close()
            self._peers.close()
