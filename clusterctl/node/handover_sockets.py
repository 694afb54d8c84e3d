"""Hands open sockets to another process with some bytes, through a socket between the two."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

MOST_SOCKETS = 64
_CHUNK = 65536


def send(descriptor: int, data: bytes, sockets: List[int]) -> None:
    """Send bytes, and these open sockets with them.

    Raises:
        OSError: there is no one to receive them.
    """
    import socket  # noqa: PLC0415  (few processes need it)

    with socket.socket(fileno=os.dup(descriptor)) as channel:
        socket.send_fds(channel, [data], sockets)


def receive(descriptor: int) -> Tuple[bytes, List[int]]:
    """Return all bytes until the other side has exited, and the sockets that came with them.

    The descriptor may also be a pipe, through which no socket comes.
    """
    import stat  # noqa: PLC0415  (few processes need it)

    data = b""
    sockets: List[int] = []
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        while found := os.read(descriptor, _CHUNK):
            data += found
        return data, sockets
    import socket  # noqa: PLC0415  (few processes need it)

    with socket.socket(fileno=os.dup(descriptor)) as channel:
        while True:
            found, came, _, _ = socket.recv_fds(channel, _CHUNK, MOST_SOCKETS)
            for each in came:
                os.set_inheritable(each, False)  # no rank may hold the lock
            sockets += came
            data += found
            if not found:
                return data, sockets
