"""Opens TCP connections: without delay of small packets, and with a limit for silence.

paramiko leaves Nagle's algorithm on, which with the peer's delayed ACKs costs 40 ms twice per
connection, and its own keepalive ignores silence.
"""

import contextlib
import socket
import time
from typing import Any

from clusterctl.transport.translate_errors import translated

KEEPALIVE_IDLE = 2
KEEPALIVE_INTERVAL = 2
KEEPALIVE_PROBES = 3
"""Seconds, seconds, times: a link that is cut is known after eight seconds."""
UNACKED_LIMIT_MS = 8000
"""The same where sent data waits for its ACK: the kernel sends no keepalive then."""
FIRST_WORDS = 512
AHEAD = 1 << 16
"""Bytes that are received at once: paramiko asks for each packet in two parts."""
FEW = 1 << 11
"""The same while little comes: who waits holds the memory for all that may come."""


class NoDelaySocket(socket.socket):
    """A socket that acknowledges at once and remembers the first bytes that came."""

    first_bytes = b""
    """What the peer sent first: its own words, if it closes before the handshake."""
    _much = False
    """As much came the last time as could."""
    _ahead = b""
    _place = 0
    """How many of the bytes received ahead were passed on."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive, and ask for quick ACKs again: the kernel forgets it after each packet."""
        if self._place == len(self._ahead):
            most = max(bufsize, AHEAD if self._much else FEW)
            self._ahead, self._place = super().recv(most, flags), 0
            self._much = len(self._ahead) == most
            if len(self.first_bytes) < FIRST_WORDS:
                self.first_bytes += self._ahead[:FIRST_WORDS]
            acknowledge_quickly(self)
        data = self._ahead[self._place : self._place + bufsize]
        self._place += len(data)
        if self._place == len(self._ahead):
            self._ahead, self._place = b"", 0  # a thousand connections wait for most of the time
        return data


def connect(host: str, port: int, *, timeout: float) -> NoDelaySocket:
    """Connect to the first of the host's addresses that answers.

    The time is shared out fairly, so a dead IPv6 address does not use up IPv4's part.

    Raises:
        NodeError: none answers; the words are the first address's.
    """
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    deadline = time.monotonic() + timeout
    with translated("connect", target):
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        first_error: OSError | None = None
        for left, (family, kind, protocol, _, address) in zip(
            range(len(addresses), 0, -1), addresses, strict=True
        ):
            share = max(deadline - time.monotonic(), 0.05) / left
            try:
                sock = _connected(NoDelaySocket(family, kind, protocol), address, share)
            except OSError as error:
                # Not even a socket, where this machine has no IPv6.
                first_error = first_error or error
            else:
                tune(sock)
                return sock
        assert first_error is not None, "getaddrinfo gives at least one address or raises"
        raise first_error


def _connected(sock: NoDelaySocket, address: Any, timeout: float) -> NoDelaySocket:  # noqa: ANN401  (a family's own)
    try:
        sock.settimeout(timeout)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Set what makes a connection quick and its death known."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the idle time TCP_KEEPALIVE and has no TCP_USER_TIMEOUT.
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKED_LIMIT_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    acknowledge_quickly(sock)


def acknowledge_quickly(sock: socket.socket) -> None:
    """Ask the kernel not to delay the next ACK, where it can be asked."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, 1)
