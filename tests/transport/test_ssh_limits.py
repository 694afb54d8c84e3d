"""What an SSH server may send before, during and after the handshake."""

from __future__ import annotations

import socket
import struct
import time
from types import SimpleNamespace
from typing import cast

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_DATA

from clusterctl.transport import pace
from clusterctl.transport.ssh import ssh_limits
from clusterctl.transport.ssh.ssh_limits import LINE_LIMIT, PACKET_LIMIT, Packetizer, within_window


def sent(data: bytes) -> Packetizer:
    """Return a packetizer to which a server has sent these bytes, and hung up."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    return Packetizer(ours)


@pytest.mark.parametrize("length", [PACKET_LIMIT + 12, 0xFFFFFFFC])
def test_a_packet_of_an_impossible_length_ends_the_connection(length: int) -> None:
    packets = sent(struct.pack(">I", length) + b"\0" * 100)
    with pytest.raises(paramiko.SSHException, match="announced a packet of"):
        packets.read_message()
    packets.close()


def test_a_packet_that_comes_byte_by_byte_is_whole() -> None:
    packets = sent(b"SSH-2.0-x\r\nabc")
    assert packets.readline(5) == "SSH-2.0-x"
    assert packets.read_all(3) == b"abc"
    with pytest.raises(EOFError):
        packets.read_all(1)
    packets.close()


def test_a_line_without_end_before_the_handshake_ends_it() -> None:
    packets = sent(b"x" * (4 * LINE_LIMIT))
    with pytest.raises(paramiko.SSHException, match="a line of more than"):
        packets.readline(5)
    packets.close()


@pytest.mark.parametrize("pipe", ["in_buffer", "in_stderr_buffer"])
def test_a_server_that_ignores_the_window_is_cut_off(pipe: str) -> None:
    held: dict[str, bytes] = {"in_buffer": b"", "in_stderr_buffer": b"", pipe: b"x" * 2000}
    packets = sent(b"")
    transport = SimpleNamespace(packetizer=packets)
    made = SimpleNamespace(in_window_size=1000, transport=transport, closed=False, **held)
    channel = cast("paramiko.Channel", made)
    handle = within_window(lambda *_: None)
    message = paramiko.Message(b"x" * 2000)
    handle(channel, message)
    assert not message.packet.getvalue(), "paramiko's thread keeps it while it waits"
    setattr(channel, pipe, b"x" * 2001)
    with pytest.raises(paramiko.SSHException, match="ignored the window: 2001 bytes of 1000"):
        handle(channel, message)
    packets.close()


def test_a_server_that_sends_what_nobody_waits_for_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel's data does not count while it is open, and is not kept once it is closed."""
    monkeypatch.setattr(ssh_limits, "UNCLAIMED_BYTES", 10_000)
    monkeypatch.setattr(ssh_limits, "UNCLAIMED_RATE", 0)
    plain = struct.pack(">IB", 2004, 3) + b"\x5e" + b"x" * 1999 + bytes(3)
    packets, fed = sent(plain * 30), list[paramiko.Message]()
    transport = SimpleNamespace(packetizer=packets)
    made = SimpleNamespace(
        in_window_size=1000, transport=transport, closed=False, in_buffer="", in_stderr_buffer=""
    )
    handle = within_window(lambda _channel, message: fed.append(message))
    for _ in range(20):
        kind, message = packets.read_message()
        assert kind == MSG_CHANNEL_DATA
        handle(cast("paramiko.Channel", made), message)
    made.closed = True
    for _ in range(5):
        _, message = packets.read_message()
        handle(cast("paramiko.Channel", made), message)
    assert len(fed) == 20
    with pytest.raises(paramiko.SSHException, match="sent 11994 bytes that no one waits for"):
        packets.read_message()
    packets.close()


def test_small_parts_come_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "BURST_SECONDS", 0.1)
    steps = pace.Pace()
    began = time.monotonic()
    for _ in range(pace.RATE // 2):
        steps.wait()
    assert time.monotonic() - began > 0.35
