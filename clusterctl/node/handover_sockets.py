"""Hands open sockets to another process with some bytes, through a socket between the two."""

from __future__ import annotations

import _socket
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

MOST_SOCKETS = 64
_CHUNK = 65536


def send(descriptor: int, data: bytes, sockets: List[int]) -> None:
    """Send bytes, and these open sockets with them; raise OSError if there is no receiver."""
    import socket  # noqa: PLC0415  (few processes need it)

    with socket.socket(fileno=os.dup(descriptor)) as channel:
        socket.send_fds(channel, [data], sockets)


def receive(descriptor: int) -> Tuple[bytes, List[int]]:
    """Return all bytes until the other side has exited, and the sockets that came with them."""
    data = b""
    sockets: List[int] = []
    channel = _socket.socket(fileno=os.dup(descriptor))
    while True:
        found, came, _, _ = channel.recvmsg(_CHUNK, _socket.CMSG_LEN(4 * MOST_SOCKETS))
        for _, _, numbers in came:
            sockets += memoryview(numbers).cast("i")
        data += found
        if not found:
            channel.close()
            for each in sockets:
                os.set_inheritable(each, False)  # no rank may hold the lock
            return data, sockets
