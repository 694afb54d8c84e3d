"""The connections of a chain: each node takes blocks from one before it, and gives them on.

The sender connects and shows its ticket; the receiver answers with `have`, a byte for each block.
The sender then sends each block that is lacking as a frame (`block`: its number), and `end` last.
The receiver answers with `complete` when it has all. Each message is a frame of `wire`, over TLS.

So a connection that breaks costs nothing but its blocks under way, and after a node that died its
predecessor serves the next one.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import socket
import ssl
import struct
import threading
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from clusterctl.node.address_family import address_family
from clusterctl.node.listener import ListenerThread, UnauthenticatedPeers
from clusterctl.node.peer_link.tls_channel import client_context, server_context
from clusterctl.node.push.manifest import BLOCK
from clusterctl.node.push.ticket import ticket
from clusterctl.node.push.tree import Tree
from clusterctl.wire import (
    BadFrame,
    CutFrame,
    FrameReader,
    Message,
    encode_head,
    read_head,
    read_message,
)

CONNECT_SECONDS = 5.0
HELLO_SECONDS = 5.0
"""A connection that has not shown its ticket by then is closed."""
MAX_UNAUTHENTICATED = 128
"""Connections that may be about to show it at a time."""
WAIT_SECONDS = 1.0
SMALL = 64 * 1024
"""Blocks up to this are gathered: each would be a packet of its own."""
GATHERED = 1 << 20
GATHER_SECONDS = 0.001
"""How long to let small blocks gather: to wake up for each costs more than to send it."""
BUFFERS = 3
"""Blocks of one receiver: one arrives, one waits, one is hashed and written."""

HEAD_LIMIT = 256
"""Bytes of the JSON of a frame."""
_END = Message({"end": True}).encode()
_COMPLETE = Message({"complete": True}).encode()


def hello(shown: bytes) -> bytes:
    """Return what a sender says first, by its ticket."""
    return Message({"ticket": shown.decode()}).encode()


class Receiver:
    """Listens for the node before, and takes its blocks in."""

    def __init__(self, tree: Tree, address: str, *, certificate: str, key: str, token: str) -> None:
        """Listen; raise OSError if the address cannot be listened on."""
        self._tree, self._token = tree, token
        self._context = server_context(certificate, key)
        self._lock = threading.Lock()
        self._current: Optional[ssl.SSLSocket] = None
        self._newest = 0
        """The number of the newest ticket that was shown."""
        self.failure: Optional[BaseException] = None
        """Why blocks cannot be written here."""
        self.bad: List[int] = []
        """Blocks that were not what they should be."""
        listening = socket.socket(address_family(address), socket.SOCK_STREAM)
        try:
            listening.bind((address, 0))
            listening.listen(64)
            self.port: int = listening.getsockname()[1]
            self._thread = ListenerThread(
                listening, self._greet, most=MAX_UNAUTHENTICATED, seconds=HELLO_SECONDS
            )
        except OSError:
            listening.close()
            raise

    def close(self) -> None:
        """Take in no more."""
        self._thread.close()
        with self._lock:
            if self._current is not None:
                _shut(self._current)

    def _greet(self, peers: UnauthenticatedPeers, connection: socket.socket, address: str) -> None:
        """Let a connection show a ticket; the one with the newest is the node before."""
        tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        frames = FrameReader(head_limit=HEAD_LIMIT, body_limit=0)

        def hear() -> Optional[bool]:
            try:
                tls.do_handshake()
                while (message := frames.next()) is None:
                    part = tls.recv(HEAD_LIMIT)
                    if not part:
                        return False
                    frames.feed(part)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            shown = str(message.head["ticket"]).encode()
            number = int(shown[:8], 16)
            if not hmac.compare_digest(shown, ticket(self._token, number)):
                return False
            newer = number > self._newest
            self._newest = max(number, self._newest)
            return newer

        def keep() -> None:
            with self._lock:
                if self._current is not None:
                    _shut(self._current)
                self._current = tls
            tls.settimeout(None)
            threading.Thread(target=self._serve, args=(tls,), daemon=True).start()

        peers.greet(tls, address, hear, keep)

    def _serve(self, tls: ssl.SSLSocket) -> None:
        with tls, contextlib.suppress(OSError, EOFError):  # ssl.SSLError is one
            try:
                self._take(tls)
            except CutFrame:
                return  # it broke
            except BadFrame:
                self.bad.append(self._tree.manifest.blocks)  # the sender is to blame

    def _take(self, tls: ssl.SSLSocket) -> None:
        """Say what is there, then take blocks in until the other side has no more."""
        have = zlib.compress(bytes(self._tree.have), 1)
        tls.sendall(Message({"have": True}, have).encode())
        free: queue.SimpleQueue[Optional[bytearray]] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            free.put(bytearray(BLOCK))
        arrived: queue.SimpleQueue[Optional[Tuple[int, int, bytearray]]] = queue.SimpleQueue()
        writer = threading.Thread(target=self._write, args=(arrived, free, tls), daemon=True)
        writer.start()
        try:
            while True:
                head, length = _receive_head(tls)
                if "block" not in head:
                    break
                index = head["block"]
                if not isinstance(index, int) or not 0 <= index < self._tree.manifest.blocks:
                    raise BadFrame("block %.50r" % index)
                buffer = free.get()
                if buffer is None:
                    return
                _receive_into(tls, memoryview(buffer)[:length])
                if length > SMALL:
                    arrived.put((index, length, buffer))
                    continue
                # To wake a thread takes longer than to write this.
                if not self._store(index, memoryview(buffer)[:length], tls):
                    return
                free.put(buffer)
        finally:
            arrived.put(None)
            writer.join()
        if self._tree.complete:
            tls.sendall(_COMPLETE)

    def _write(
        self,
        arrived: queue.SimpleQueue[Optional[Tuple[int, int, bytearray]]],
        free: queue.SimpleQueue[Optional[bytearray]],
        tls: ssl.SSLSocket,
    ) -> None:
        while (item := arrived.get()) is not None:
            index, length, buffer = item
            if not self._store(index, memoryview(buffer)[:length], tls):
                free.put(None)
                return
            free.put(buffer)

    def _store(self, index: int, data: memoryview, tls: ssl.SSLSocket) -> bool:
        """Write a block; False: that failed, and the connection ends."""
        try:
            if self._tree.write(index, data):
                return True
            self.bad.append(index)
        except Exception as error:  # noqa: BLE001  (told to the controller)
            self.failure = error
        _shut(tls)
        return False


class Sender:
    """Gives blocks to one node after it, as they come; in a thread of its own."""

    def __init__(self, tree: Tree, done: Callable[[Optional[Exception]], None]) -> None:
        """Prepare; `done` is called once, with why it ended early or None."""
        self._tree, self._done = tree, done
        self._stopped = threading.Event()
        self._socket: Optional[socket.socket] = None

    def start(
        self, address: str, port: int, *, certificate: str, shown: bytes, after: float = 0.0
    ) -> None:
        """Connect after so many seconds to who has this certificate, show a ticket, and send."""
        args = (address, port, certificate, shown, after)
        threading.Thread(target=self._run, args=args, daemon=True).start()

    def stop(self) -> None:
        """Send no more, and call back no more."""
        self._stopped.set()
        if self._socket is not None:
            _shut(self._socket)

    def _run(self, address: str, port: int, certificate: str, shown: bytes, after: float) -> None:
        why: Optional[Exception] = None
        if self._stopped.wait(after):
            return
        try:
            self._send(address, port, client_context(certificate), shown)
        except (OSError, EOFError, BadFrame) as error:
            why = error
        if not self._stopped.is_set():
            self._done(why)

    def _send(self, address: str, port: int, context: ssl.SSLContext, shown: bytes) -> None:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with context.wrap_socket(plain) as tls:
                self._socket = tls
                tls.sendall(hello(shown))
                answer = read_message(tls, head_limit=HEAD_LIMIT, body_limit=BLOCK)
                if answer is None:
                    raise EOFError("the connection was closed")
                have = inflated(answer.body, self._tree.manifest.blocks)
                tls.settimeout(None)
                self._stream(tls, have)
                tls.sendall(_END)
                if "complete" not in _receive_head(tls)[0]:
                    raise EOFError("it does not have all")

    def _stream(self, tls: ssl.SSLSocket, have: bytes) -> None:
        gathered = bytearray()

        def flush() -> None:
            if gathered:
                tls.sendall(gathered)
                gathered.clear()

        for index, data in lacking_blocks(self._tree, have, self._stopped, flush):
            head = encode_head({"block": index}, len(data))
            if len(data) <= SMALL:
                gathered += head
                gathered += data
                if len(gathered) >= GATHERED:
                    flush()
            else:
                gathered += head
                flush()
                tls.sendall(data)
        flush()
        if self._stopped.is_set():
            raise EOFError("stopped")


def lacking_blocks(
    tree: Tree, have: bytes, stopped: threading.Event, idle: Callable[[], None] = lambda: None
) -> Iterator[Tuple[int, memoryview]]:
    """Yield each block that another node lacks, once it is here; `idle` is called before waits."""
    reader = tree.reader()
    lacking = tree.manifest.blocks - sum(have)
    place = 0
    try:
        while lacking and not stopped.is_set():
            if place == len(tree.arrived):
                idle()
                tree.wait_beyond(place, WAIT_SECONDS)
                stopped.wait(GATHER_SECONDS)
                continue
            index = tree.arrived[place]
            place += 1
            if not have[index]:
                lacking -= 1
                yield index, reader.read(index)
    finally:
        reader.close()


def inflated(data: bytes, blocks: int) -> bytes:
    """Return which blocks a node has, a byte each; raise EOFError if it is not that."""
    try:
        have = zlib.decompressobj().decompress(data, blocks + 1)
    except zlib.error as error:
        raise EOFError("it is not a node of this push") from error
    if len(have) != blocks or have.strip(b"\0\1"):
        raise EOFError("it is not a node of this push")
    return have


def _receive_head(tls: ssl.SSLSocket) -> Tuple[Dict[str, Any], int]:
    """Read a frame up to its body; return its head, and the length of the body."""
    message = read_head(tls, head_limit=HEAD_LIMIT, body_limit=BLOCK)
    if message is None:
        raise EOFError("the connection was closed")
    return message.head, message.body_length


def _receive_into(tls: ssl.SSLSocket, view: memoryview) -> None:
    while view:
        count = tls.recv_into(view)
        if not count:
            raise EOFError("the connection was closed")
        view = view[count:]


def _shut(connection: socket.socket) -> None:
    """Wake up the thread that waits for a socket; the owner closes it."""
    try:
        # Reset when it is closed: a sender whose window is full would hear of nothing else.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Not SSLSocket's own: the thread that reads would lose its object under it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return
