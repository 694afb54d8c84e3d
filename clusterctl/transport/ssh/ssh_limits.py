"""What an SSH server may send: lines, packets and windows as large as OpenSSH takes, and no more.

paramiko believes a packet's length up to 4 GB, and a channel keeps what is sent beyond its window.
"""

import io
import socket
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.packet import NeedRekeyException

from clusterctl.transport.pace import SMALL, Pace

LINE_LIMIT = 8192
"""Bytes of a line before the handshake."""
PACKET_LIMIT = 256 << 10
"""Bytes of a packet."""
WINDOWS = 2
"""Windows that a channel may hold: a server that sends more than one takes no notice of it."""
UNCLAIMED_BYTES, UNCLAIMED_RATE = 16 << 20, 1 << 20
"""What else a server may send, at once and a second: for channels that are closed, or to no end.

OpenSSH's sends a window's worth to each channel that is closed early.
"""


class Packetizer(paramiko.packet.Packetizer):
    """paramiko's packets with limits, read in linear time."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a socket over."""
        super().__init__(sock)
        self._sock = sock
        self._ahead = b""
        """What came with the last line."""
        self._pace = Pace()
        self._unclaimed, self._began = 0, time.monotonic()

    def readline(self, timeout: float) -> str:
        """Return the next line before the handshake; `timeout` is for each part of it."""
        while b"\n" not in self._ahead:
            if len(self._ahead) > LINE_LIMIT:
                raise paramiko.SSHException(f": a line of more than {LINE_LIMIT} bytes")
            self._ahead += self._read_timeout(timeout)  # type: ignore[attr-defined]
        line, _, self._ahead = self._ahead.partition(b"\n")
        return line.removesuffix(b"\r").decode()

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:  # noqa: FBT001, FBT002  (paramiko's)
        """Return so many bytes of a packet.

        Raises:
            SSHException: no OpenSSH server sends a packet of that size.
            EOFError: the connection ended, or the handshake took too long.
        """
        if not 0 <= n <= PACKET_LIMIT:
            raise paramiko.SSHException(f"the server announced a packet of {n} bytes")
        data = bytearray(self._ahead[:n])
        self._ahead = self._ahead[n:]
        while len(data) < n:
            if self.handshake_timed_out():
                raise EOFError
            part = self._receive(n - len(data))
            if len(part) == n:
                return part
            data += part
            if not part and check_rekey and not data and self.need_rekey():
                raise NeedRekeyException
        return bytes(data)

    def complete_handshake(self) -> None:
        """Note that the handshake is over, and keep nothing of its timer."""
        super().complete_handshake()
        self.__timer = None  # the base class has this name too, so the name is the same

    def _receive(self, count: int) -> bytes:
        """Return up to so many bytes; none if none came for a while."""
        try:
            part = self._sock.recv(count)
        except (TimeoutError, BlockingIOError):
            if self.closed:
                raise EOFError from None
            self._check_keepalive()  # type: ignore[attr-defined]
            return b""
        except OSError:
            if self.closed:
                raise EOFError from None
            raise
        if not part:
            raise EOFError
        return part

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Return the next packet's type and contents, small ones at a pace."""
        kind, message = super().read_message()
        size = message.packet.getbuffer().nbytes
        if size < SMALL:
            self._pace.wait()
            return kind, message
        self._unclaimed += size
        seconds = time.monotonic() - self._began
        if self._unclaimed > UNCLAIMED_BYTES + UNCLAIMED_RATE * seconds:
            raise paramiko.SSHException(
                f"the server sent {self._unclaimed} bytes that no one waits for"
            )
        return kind, message

    def claim(self, message: paramiko.Message) -> None:
        """Note that a channel takes what was read."""
        size = message.packet.getbuffer().nbytes
        self._unclaimed -= size if size >= SMALL else 0


def within_window(
    feed: Callable[[paramiko.Channel, Any], object],
) -> Callable[[paramiko.Channel, Any], None]:
    """Return a handler of a channel's data that ends the connection of a server that floods it."""

    def handle(channel: paramiko.Channel, message: paramiko.Message) -> None:
        if not channel.closed:
            transport: Any = channel.transport  # whose packets are ours
            transport.packetizer.claim(message)
            feed(channel, message)
        message.packet = io.BytesIO()  # paramiko holds the last message while it waits
        held = len(channel.in_buffer) + len(channel.in_stderr_buffer)
        if held > WINDOWS * channel.in_window_size:
            raise paramiko.SSHException(
                f"the server ignored the window: {held} bytes of {channel.in_window_size}"
            )

    return handle
