"""Bytes that were received ahead are passed on as they were asked for."""

from __future__ import annotations

import _socket
import socket

import pytest

from clusterctl.transport.ssh.sockets import AHEAD, FEW, FIRST_WORDS, NoDelaySocket


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


def test_who_waits_holds_memory_for_little_until_much_comes(
    pair: tuple[NoDelaySocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    asked: list[int] = []

    def recv(sock: socket.socket, count: int, flags: int = 0) -> bytes:
        asked.append(count)
        return _socket.socket.recv(sock, count, flags)

    monkeypatch.setattr(socket.socket, "recv", recv, raising=False)
    with ours, theirs:
        theirs.sendall(b"x" * (FEW + 8))
        assert len(ours.recv(4) + ours.recv(FEW - 4) + ours.recv(4) + ours.recv(4)) == FEW + 8
        theirs.sendall(b"y")
        assert ours.recv(4) == b"y"
        assert ours._ahead == b""
    assert asked == [FEW, AHEAD, FEW]
