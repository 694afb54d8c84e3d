"""Lines of JSON over TLS on one connection, without ever waiting: how supervisors talk.

Who sends what, and when, is in `messages`.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from typing import Any, Callable, Dict

from clusterctl.node.agent.anonymous_file import anonymous_file
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.fields import MessageError
from clusterctl.wire import BadLine, LineReader, encode_line

LINE_LIMIT = 65536
UNAUTHENTICATED_LINE = 1024
"""Of a peer that has not shown who it is."""
UNSENT_LIMIT = 1 << 20
"""Bytes that may wait for a peer: one that asks without reading fills no memory."""
UNAUTHENTICATED_BYTES = 65536
"""What one may send in all until then: some records cost us an answer, and none ends a line."""
BYTES_A_SECOND = 65536
"""Once a peer has sent more within a second, it is not read for one: each line costs CPU time.

A supervisor sends a line every 2 seconds, and some at its end.
"""


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the master's side: the run's certificate, its key never on a disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    memory = anonymous_file("certificate")  # the ssl module takes keys from files only
    try:
        os.write(memory, (certificate + key).encode())
        context.load_cert_chain("/proc/self/fd/%d" % memory)
    finally:
        os.close(memory)
    return context


def client_context(certificate: str) -> ssl.SSLContext:
    """Return a worker's side: it trusts this run's certificate and no other, by any name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


class TlsChannel:
    """One connection. It calls back with each message, and once when it is over."""

    def __init__(
        self,
        loop: EventLoop,
        connection: socket.socket,
        context: ssl.SSLContext,
        on_message: Callable[[TlsChannel, Dict[str, Any]], None],
        on_closed: Callable[[TlsChannel, str], None],
    ) -> None:
        """Take over a socket that is connected or about to be."""
        self.last_received = time.monotonic()
        """When anything last came from the other side."""
        self.name = ""
        """Who it is, once that is proven."""
        self._loop, self._socket = loop, connection
        self._on_message, self._on_closed = on_message, on_closed
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server_side = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._handshaken = False
        self._lines = LineReader()
        self._out, self._wire = bytearray(), bytearray()
        self._received = 0
        self._resting = False
        self._second, self._in_second = 0.0, 0
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.add_descriptor(connection.fileno(), self._ready, write=True)

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message as soon as that can be; never waits, and never calls back."""
        self._out += encode_line(message)
        if self._handshaken:
            self._flush()

    def close(self) -> None:
        """End the connection, without a further call back."""
        if self._socket.fileno() >= 0:
            self._loop.remove_descriptor(self._socket.fileno())
            self._socket.close()

    def _close_with(self, why: str) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._on_closed(self, why)

    def _ready(self) -> None:
        """Do what can be done. Nothing that comes from the other side goes beyond its channel."""
        try:
            self._receive()
        except MessageError as error:  # it would fill the log
            self._close_with("its message cannot be acted on: %s" % error)
        except Exception as error:  # noqa: BLE001  (no peer may end the run; the log has it)
            import traceback  # noqa: PLC0415  (start-up counts)

            traceback.print_exc()
            self._close_with("its message could not be handled: %r" % error)

    def _receive(self) -> None:
        # One piece a turn: a peer that sends faster than we read must wait, and fills no memory.
        try:
            data = self._socket.recv(LINE_LIMIT)
        except BlockingIOError:
            self._advance()
            return
        except OSError as error:
            self._close_with(error.strerror or str(error))
            return
        self.last_received = time.monotonic()
        self._received += len(data)
        if not self.name and self._received > UNAUTHENTICATED_BYTES:
            self._close_with("it does not say who it is")
            return
        self._incoming.write(data)
        self._advance()
        if not data:
            self._close_with("it closed the connection")
        self._rest_after(len(data))

    def _rest_after(self, received: int) -> None:
        """Leave what a peer that floods sends next to the kernel for a while."""
        if self.last_received - self._second >= 1.0:
            self._second, self._in_second = self.last_received, 0
        self._in_second += received
        if self._in_second > BYTES_A_SECOND and self._socket.fileno() >= 0:
            self._resting = True
            self._loop.remove_descriptor(self._socket.fileno())
            self._loop.call_later(1.0, self._continue)

    def _continue(self) -> None:
        self._resting = False
        self._flush()

    def _advance(self) -> None:
        """Move bytes as far as they go: handshake, what came, what is to go."""
        try:
            if not self._handshaken:
                self._tls.do_handshake()
                self._handshaken = True
            while True:
                data = self._tls.read(LINE_LIMIT)
                if not data:
                    break
                self._lines.feed(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._close_with("TLS: %s" % (error.reason or error))
            return
        self._flush()
        self._deliver()

    def _flush(self) -> None:
        """Send what can go. The event loop reports a failure: our caller may be iterating."""
        if self._socket.fileno() < 0:
            return
        try:
            if self._handshaken and self._out:
                self._tls.write(self._out)
                self._out.clear()
            self._wire += self._outgoing.read()
            while self._wire:
                del self._wire[: self._socket.send(self._wire)]
        except BlockingIOError:
            if len(self._wire) > UNSENT_LIMIT:
                self._loop.call_later(0, lambda: self._close_with("it does not read"))
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or str(error)
            self._loop.call_later(0, lambda: self._close_with(why))
            return
        if not self._resting:
            self._loop.add_descriptor(self._socket.fileno(), self._ready, write=bool(self._wire))

    def _deliver(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                message = self._lines.next(LINE_LIMIT if self.name else UNAUTHENTICATED_LINE)
            except BadLine:
                self._close_with("it is not a supervisor of clusterctl")
                return
            if message is None:
                return
            self._on_message(self, message)
