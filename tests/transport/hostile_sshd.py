"""An SSH server that floods whoever logs in: `hostile_sshd.py PORT KEY FLOOD BYTES`.

It is paramiko's server, without the limits that OpenSSH's keeps to.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable

import paramiko
from paramiko.common import (
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EXTENDED_DATA,
    cMSG_DEBUG,
    cMSG_IGNORE,
    cMSG_USERAUTH_BANNER,
)

LINES = (b"y" * 99 + b"\n") * 300
MIB = 1 << 20
BEFORE_LOGIN = {"welcome": cMSG_USERAUTH_BANNER, "ignored": cMSG_IGNORE, "debug": cMSG_DEBUG}


class Server(paramiko.ServerInterface):
    transport: paramiko.Transport

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        if sys.argv[3] in BEFORE_LOGIN:
            send_packets(self.transport, BEFORE_LOGIN[sys.argv[3]])
        return paramiko.common.AUTH_SUCCESSFUL

    def check_auth_none(self, username: str) -> int:
        del username
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del kind, chanid
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        del command
        threading.Thread(target=serve, args=(channel,), daemon=True).start()
        return True


class Call:
    """One command of the client: it has sent an agent and a request, and waits for the marker."""

    def __init__(self, channel: paramiko.Channel, amount: int) -> None:
        self.channel = channel
        self.transport = channel.get_transport()
        self.amount = amount

    def take(self) -> None:
        for _ in range(2):
            while self.exactly(1) != b"\n":
                pass
        marker, *_ = [self.exactly(int(self.exactly(12))) for _ in range(5)]
        head, body = struct.unpack(">II", self.exactly(8))
        self.asked: str = json.loads(self.exactly(head))["op"]
        self.exactly(body)
        if sys.argv[3] == "noise":
            self.repeat(LINES, self.channel.sendall)
        self.channel.sendall(marker)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.channel.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def beyond_window(self, data: bytes, extended: int | None = None) -> None:
        message = paramiko.Message()
        kind = cMSG_CHANNEL_DATA if extended is None else cMSG_CHANNEL_EXTENDED_DATA
        message.add_byte(kind)
        message.add_int(self.channel.remote_chanid)
        if extended is not None:
            message.add_int(extended)
        message.add_string(data)
        self.transport._send_user_message(message)  # type: ignore[attr-defined]

    def repeat(self, data: bytes, send: Callable[[bytes], object]) -> None:
        for _ in range(self.amount // len(data) + 1):
            send(data)


def frame(head: object, body: bytes = b"") -> bytes:
    return raw_frame(json.dumps(head).encode(), body)


def raw_frame(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


def send_packets(transport: paramiko.Transport, kind: bytes) -> None:
    """Send as many packets of this kind, each with a text, as the client takes."""
    message = paramiko.Message()
    message.add_byte(kind)
    if kind == cMSG_DEBUG:
        message.add_boolean(True)
    message.add_string(b"z" * 32_000)
    if kind != cMSG_IGNORE:
        message.add_string(b"")
    try:
        for _ in range(int(sys.argv[4]) // 32_000):
            transport._send_message(message)  # type: ignore[attr-defined]
    except (OSError, EOFError, paramiko.SSHException):
        pass  # the client hung up, as it should


def stdout(call: Call) -> None:
    call.repeat(frame({"stream": "stdout"}, LINES), call.beyond_window)


def stderr(call: Call) -> None:
    call.repeat(b"x" * 32_000, lambda data: call.beyond_window(data, 1))


def packet(call: Call) -> None:
    time.sleep(0.3)
    sock = call.transport.sock
    sock.sendall(b"\xf0\x00\x00\x00")
    call.repeat(bytes(1 << 16), sock.sendall)


def output(call: Call) -> None:
    call.repeat(frame({"stream": "stdout"}, LINES * 8), call.channel.sendall)


def facts(call: Call) -> None:
    call.channel.sendall(frame({"time": 1.0}))
    call.repeat(frame({"answers": [["file:/proc/mounts", "ok", 30_000, None, 0.0, ""]]}, LINES),
                call.channel.sendall)  # fmt: skip


def collect(call: Call) -> None:
    call.channel.sendall(frame({"here": True}))
    for offset in range(0, call.amount, len(LINES)):
        head = {"data": "ranks/0.log", "rank": 0, "offset": offset, "time": 1.0}
        call.channel.sendall(frame(head, LINES))


def pieces(call: Call) -> None:
    call.channel.sendall(frame({"here": True}))
    for begin in range(0, call.amount, 1000):
        heads = [["ranks/0.log", 0, at, at + 1, 1.0, 0] for at in range(begin, begin + 1000)]
        call.channel.sendall(frame({"pieces": heads}, b"x" * 1000))


def noise(call: Call) -> None:
    """All of it came before the marker."""


def endless(call: Call) -> None:
    """Announces JSON of 4 GB."""
    call.channel.sendall(b"\xff\xff\xff\xff\0\0\0\0" + b'{"a":"')
    call.repeat(b"x" * 65_536, call.channel.sendall)


def deep(call: Call) -> None:
    """As many levels as a frame has room for."""
    call.repeat(raw_frame(b'{"end":' + b"[" * 7 * MIB), call.channel.sendall)


def values(call: Call) -> None:
    """JSON that takes thirty times its size in memory."""
    call.repeat(raw_frame(b'{"read":[' + b'{"":1},' * 160_000 + b"0]}"), call.channel.sendall)


def too_many_values(call: Call) -> None:
    call.repeat(raw_frame(b'{"read":[' + b'{"":1},' * MIB + b"0]}"), call.channel.sendall)


def names(call: Call) -> None:
    """An object of many different names, again and again."""
    inside = b",".join(b'"%x":0' % number for number in range(100_000))
    call.repeat(raw_frame(b'{"read":{' + inside + b"}}"), call.channel.sendall)


def lines(call: Call) -> None:
    """A log that the user wants to see."""
    call.channel.sendall(frame({"here": True}))
    for offset in range(0, call.amount, 8 * len(LINES)):
        head = {"data": "ranks/0.log", "rank": 0, "offset": offset, "time": 1.0}
        call.channel.sendall(frame(head, LINES * 8))


def follow(call: Call) -> None:
    """A run that is followed, or launched and then followed: its log and its events, to its end."""
    if call.asked == "collect-facts":
        address = {"local": "127.0.0.1", "prefixlen": 8}
        listed = json.dumps([{"ifname": "lo", "addr_info": [address]}]).encode()
        answers = [["interfaces", "ok", len(listed), None, 0.0, ""]]
        call.channel.sendall(frame({"answers": answers, "end": True}, zlib.compress(listed)))
        return
    if call.asked != "tail":
        call.channel.sendall(frame({"pid": 1, "link_port": 0, "end": True}))
        return
    log = {"data": "ranks/0.log", "rank": 0, "time": 1.0}
    event = {"kind": "rank-ended", "rank": 0, "exit_code": 1, "time": 1.0, "message": "m" * 4000}
    one = frame({"event": event, "file": "events.jsonl"})
    for offset in range(0, call.amount, len(LINES) * 2):
        call.channel.sendall(frame({**log, "offset": offset}, LINES * 2) + one)
    rank = {"rank": 0, "state": "ended", "exit_code": 1}
    end = {"state": "failed", "reason": "r", "by": "rank", "exit_code": 1, "time": 1.0}
    node = {"schema": 1, "run": "r", "state": "failed", "ranks": [rank], "end": end}
    call.channel.sendall(frame({"node": node, "end": True}))


def ended(call: Call) -> None:
    """Goes on after its answer on a channel that both sides have closed."""
    call.channel.sendall(frame({"runs": [], "end": True}))
    call.channel.close()
    while not call.channel.closed or call.channel.chanid in call.transport._channels._map:  # type: ignore[attr-defined]
        time.sleep(0.01)
    call.repeat(b"x" * 32_000, call.beyond_window)


def events(call: Call) -> None:
    call.channel.sendall(frame({"here": True}))
    event = {"kind": "rank-ended", "rank": 0, "exit_code": 1, "time": 1.0, "message": "m" * 4000}
    call.repeat(frame({"event": event, "file": "events.jsonl"}) * 8, call.channel.sendall)


def large_events(call: Call) -> None:
    call.channel.sendall(frame({"here": True}))
    head = b'{"file":"events.jsonl","event":{"kind":"late","all":[' + b"[0]," * (MIB // 9) + b"0]}}"
    call.repeat(raw_frame(head), call.channel.sendall)


def manifest(call: Call) -> None:
    head = {"bytes": 1, "files": 1, "blocks": 1, "content": "0", "end": True}
    size = min(call.amount, 48 * MIB)
    call.channel.sendall(struct.pack(">II", len(json.dumps(head)), size))
    call.channel.sendall(json.dumps(head).encode())
    for _ in range(size // MIB):
        call.channel.sendall(bytes(MIB))
    call.channel.sendall(bytes(size % MIB))


def rsync(call: Call) -> None:
    call.channel.sendall(frame({"exec": True}) + struct.pack("<i", 31))
    call.exactly(4)
    call.channel.sendall(b"\0" + struct.pack("<i", 1))
    threading.Thread(target=drain, args=(call.channel,), daemon=True).start()
    words = b"E" * 1000 + b"\n"
    call.repeat((struct.pack("<I", (10 << 24) | len(words)) + words) * 30, call.channel.sendall)


def drain(channel: paramiko.Channel) -> None:
    while channel.recv(1 << 16):
        pass


_ALL = (
    stdout, stderr, packet, output, facts, collect, pieces, rsync, noise, endless, deep, values,
    names, too_many_values, lines, events, large_events, manifest, follow, ended,
)  # fmt: skip
FLOODS = {one.__name__: one for one in _ALL} | {"launch": follow}


def serve(channel: paramiko.Channel) -> None:
    call = Call(channel, int(sys.argv[4]))
    try:
        call.take()
        FLOODS.get(sys.argv[3], noise)(call)
        time.sleep(60)
    except (OSError, EOFError, paramiko.SSHException):
        pass  # the client hung up, as it should


def flood_banner(client: socket.socket) -> None:
    """Send lines before the version, as a server may."""
    with client:
        try:
            for _ in range(int(sys.argv[4]) // (8 * len(LINES))):
                client.sendall(LINES * 8)
        except OSError:
            pass  # the client hung up, as it should


def main() -> None:
    key = paramiko.Ed25519Key.from_private_key_file(sys.argv[2])
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        print("ready", flush=True)
        while True:
            client, _ = listener.accept()
            if sys.argv[3] == "banner":
                flood_banner(client)
                continue
            transport = paramiko.Transport(client)
            transport.add_server_key(key)
            server = Server()
            server.transport = transport
            transport.start_server(event=threading.Event(), server=server)


if __name__ == "__main__":
    main()
