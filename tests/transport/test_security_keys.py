"""Keys in FIDO tokens: the agent and OpenSSH can use them, and the person hears of the touch."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from clusterctl.errors import NodeError
from clusterctl.transport.interface import Reply, Request, Timeouts
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import control_master, paramiko_login
from tests.failed_reply import error_of
from tests.sshd_servers import Sshd, cluster_of

KIND = b"sk-ssh-ed25519@openssh.com"
APPLICATION = b"ssh:"
TOUCHED = b"\x01" + struct.pack(">I", 7)
"""The flag of a touch, and a counter of signatures."""


def string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class Token:
    """A security key as an ssh-agent offers it; a person touches it after a while, or never."""

    def __init__(self, *, seconds: float = 0.0, touched: bool = True) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.seconds = seconds
        self.touched = touched
        public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.blob = string(KIND) + string(public) + string(APPLICATION)

    @property
    def line(self) -> str:
        return f"{KIND.decode()} {base64.b64encode(self.blob).decode()} token\n"

    def answer(self, request: bytes) -> bytes:
        if request[0] == 11:  # list the keys
            return b"\x0c" + struct.pack(">I", 1) + string(self.blob) + string(b"token")
        time.sleep(self.seconds)
        if not self.touched:
            return b"\x05"
        rest = request[1 + len(string(self.blob)) :]
        data = rest[4 : 4 + struct.unpack(">I", rest[:4])[0]]
        parts = hashlib.sha256(APPLICATION).digest(), TOUCHED, hashlib.sha256(data).digest()
        signature = string(KIND) + string(self.key.sign(b"".join(parts))) + TOUCHED
        return b"\x0e" + string(signature)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Token], None]]:
    """Run an agent that holds a token's key."""
    servers: list[socketserver.ThreadingUnixStreamServer] = []

    def start(token: Token) -> None:
        class Asked(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while head := self.rfile.read(4):
                    request = self.rfile.read(struct.unpack(">I", head)[0])
                    self.wfile.write(string(token.answer(request)))

        path = str(tmp_path / "agent")
        server = socketserver.ThreadingUnixStreamServer(path, Asked)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("SSH_AUTH_SOCK", path)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def hello(server: Sshd, token: Token, **ssh: object) -> Reply:
    (server.folder / "authorized_keys").write_text(token.line)
    node = server.node("n", identity=None, **ssh)
    with Pool(cluster_of(node)) as pool:
        (reply,) = pool.call({"n": Request(op="hello", args={})})
    return reply


def test_a_security_key_in_the_agent_opens_and_the_touch_is_asked_for(
    sshd: Sshd,
    hold: Callable[[Token], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(paramiko_login, "BANNER_SECONDS", 0.2)
    token = Token(seconds=1)
    hold(token)
    with caplog.at_level(logging.WARNING):
        reply = hello(sshd, token)
    assert reply.ok, reply
    assert any("touch your security key" in one.getMessage() for one in caplog.records)


def test_a_touch_may_take_longer_than_another_login(
    sshd: Sshd, hold: Callable[[Token], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Token(seconds=3)
    hold(token)
    (sshd.folder / "authorized_keys").write_text(token.line)
    with Pool(cluster_of(sshd.node("n", identity=None)), timeouts=Timeouts(auth=1)) as pool:
        (reply,) = pool.call({"n": Request(op="hello", args={})})
    assert reply.ok, reply


def test_a_touch_that_never_comes_is_a_refused_login(
    sshd: Sshd, hold: Callable[[Token], None]
) -> None:
    token = Token(touched=False)
    hold(token)
    reply = hello(sshd, token)
    assert reply.state == "auth", reply
    assert "no signature by the agent" in error_of(reply).message


def test_a_security_key_in_a_file_names_the_way_that_can_use_it(
    sshd: Sshd, ssh_config: Path, tmp_path: Path
) -> None:
    token = Token()
    (tmp_path / "id_sk").write_text("handle")
    (tmp_path / "id_sk.pub").write_text(token.line)
    ssh_config.write_text(f"IdentityFile {tmp_path}/id_sk\n")
    reply = hello(sshd, token)
    assert reply.state == "auth", reply
    assert f"security key ({tmp_path}/id_sk): set `ssh: {{via: openssh}}`" in error_of(reply).hint


@pytest.mark.parametrize("ends", [True, False])
def test_the_systems_ssh_waits_for_a_touch_without_a_word_so_we_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, ends: bool
) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nsleep 1\nexit 255\n" if ends else "#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(control_master, "BANNER_SECONDS", 0.2)
    monkeypatch.setattr(control_master, "TOUCH_SECONDS", 0.5 if not ends else 60)
    folder = control_master.ControlFolder()
    limits = Timeouts(connect=0, handshake=0, auth=0)
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(NodeError) as caught:
            folder.master("n").open([], timeouts=limits, token=Path("/home/ada/id_sk"))
    finally:
        folder.close()
    said = "n: still logging in; touch your security key if it blinks (/home/ada/id_sk)"
    assert said in [one.getMessage() for one in caplog.records]
    assert caught.value.state == ("lost" if ends else "timeout")
    assert ends or "touch" in caught.value.hint
