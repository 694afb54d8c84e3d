"""Bytes that were received ahead are passed on as they were asked for."""

from __future__ import annotations

import socket

import pytest

from clusterctl.transport.sockets import AHEAD, FIRST_WORDS, NoDelaySocket


@pytest.fixture
def pair() -> tuple[NoDelaySocket, socket.socket]:
    ours, theirs = socket.socketpair()
    return NoDelaySocket(fileno=ours.detach()), theirs


def test_small_parts_of_much_come_in_order(pair: tuple[NoDelaySocket, socket.socket]) -> None:
    ours, theirs = pair
    content = bytes(range(256)) * 64
    with ours, theirs:
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        parts = list(iter(lambda: ours.recv(100), b""))
    assert b"".join(parts) == content
    assert max(map(len, parts)) == 100
    assert ours.first_bytes == content[:FIRST_WORDS] or len(ours.first_bytes) > FIRST_WORDS


def test_what_was_received_ahead_is_there_without_waiting(
    pair: tuple[NoDelaySocket, socket.socket],
) -> None:
    ours, theirs = pair
    with ours, theirs:
        ours.settimeout(0.05)
        theirs.sendall(b"one two")
        assert ours.recv(4) == b"one "
        assert ours.recv(AHEAD) == b"two"
        with pytest.raises(TimeoutError):
            ours.recv(1)
        theirs.sendall(b"more")
        assert ours.recv(AHEAD) == b"more"
