"""The TCP sockets of this machine, asked of the kernel or read as it prints them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from clusterctl.node import tcp_sockets
from clusterctl.node.tcp_sockets import ESTABLISHED, LISTEN, TcpSocket, read_tcp, tcp_table

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7345 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:8E12 0100007F:7345 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 0 10 -1
"""  # noqa: E501


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def opened(request: pytest.FixtureRequest) -> Iterator[dict[str, socket.socket]]:
    """Return a server, a client that has sent it something, and the server's side of that."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        try:
            server.bind((request.param, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        server.listen()
        client = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        accepted = stack.enter_context(server.accept()[0])
        yield {"server": server, "client": client, "accepted": accepted}


def seen(opened: dict[str, socket.socket]) -> dict[str, TcpSocket]:
    """Return what is found of these sockets."""
    names = {str(inode_of(one)): name for name, one in opened.items()}
    return {names[one.inode]: one for one in read_tcp() if one.inode in names}


def inode_of(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_the_kernel_answers_what_it_prints(
    opened: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = seen(opened)
    assert told.keys() == opened.keys()
    port = opened["server"].getsockname()[1]
    assert (told["server"].state, told["server"].local_port) == (LISTEN, port)
    assert (told["client"].state, told["client"].remote_port) == (ESTABLISHED, port)
    assert told["client"].remote == told["accepted"].local
    assert [one.inode for one in tcp_sockets.listening(port)] == [told["server"].inode]

    def refused(*_: object) -> None:
        raise OSError("there is no sock_diag here")

    monkeypatch.setattr(socket, "socket", refused)
    assert seen(opened) == told
    assert [one.inode for one in tcp_sockets.listening(port)] == [told["server"].inode]


def test_sockets_are_read_as_the_kernel_prints_them() -> None:
    assert tcp_table(TCP) == [
        TcpSocket("0A", 29509, 0, "4711", 0, "0.0.0.0", local="127.0.0.1"),
        TcpSocket("01", 36370, 29509, "4712", 0, "127.0.0.1", local="127.0.0.1"),
    ]
