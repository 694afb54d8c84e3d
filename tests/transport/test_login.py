"""A login begins without a key as OpenSSH's does, and shows what the server says if it waits."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import psutil
import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.connector import Connector
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import control_master, paramiko_login
from tests.failed_reply import error_of
from tests.sshd_servers import HELLO, Sshd, cluster_of, hello, make_key
from tests.waiting import BUSY, wait_until

URL = "https://login.tailscale.com/a/1234"


class Gate(paramiko.ServerInterface):
    """A server that lets everybody in, once the person has opened a URL; no key is needed."""

    def __init__(self, waits: float) -> None:
        self.waits = waits
        self.keys = 0

    def get_banner(self) -> tuple[str, str]:
        return f"\x1b]0;title\x07To authenticate, visit:\r\n\x1b[31m{URL}\r\n" + "x" * 9999, "en"

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002  (paramiko's)
        return "publickey"

    def check_auth_none(self, username: str) -> int:  # noqa: ARG002  (paramiko's)
        time.sleep(self.waits)
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002  (paramiko's)
        self.keys += 1
        return paramiko.AUTH_FAILED  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def serve(own_state: Path) -> Iterator[Callable[[Gate], int]]:
    """Serve one connection by a server of paramiko's; return its port."""
    transports: list[paramiko.Transport] = []
    listeners: list[socket.socket] = []

    def start(gate: Gate) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            connection, _ = listener.accept()
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(paramiko.RSAKey.generate(2048))
            with contextlib.suppress(paramiko.SSHException, EOFError):  # the client left at once
                transport.start_server(server=gate)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for transport in transports:
        transport.close()
    for listener in listeners:
        listener.close()


def connect(port: int, identity: Path, timeouts: Timeouts) -> None:
    ways = Connector("t", timeouts=timeouts, accept_new=True)
    node = Node(host="127.0.0.1", name="n", ssh=Ssh(port=port, identity=str(identity)))
    try:
        ways.connect(node).close()
    finally:
        ways.close()


def test_a_server_that_needs_no_key_is_offered_none_and_its_words_stay_unshown(
    serve: Callable[[Gate], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(0)
    connect(serve(gate), make_key(tmp_path / "id"), Timeouts())
    assert gate.keys == 0
    assert URL not in caplog.text


def test_a_login_that_waits_shows_what_the_server_says(
    serve: Callable[[Gate], int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paramiko_login, "BANNER_SECONDS", 0.3)
    connect(serve(Gate(1)), make_key(tmp_path / "id"), Timeouts())
    (said,) = [one.getMessage() for one in caplog.records if URL in one.getMessage()]
    assert said.isprintable()
    assert len(said) < 400


def test_a_login_that_times_out_says_what_the_server_said(
    serve: Callable[[Gate], int], tmp_path: Path
) -> None:
    with pytest.raises(NodeError) as caught:
        connect(serve(Gate(5)), make_key(tmp_path / "id"), Timeouts(auth=1))
    assert (caught.value.state, caught.value.phase) == ("timeout", "auth")
    assert URL in caught.value.message
    assert caught.value.message.isprintable()


def test_a_refused_login_says_what_the_server_said(
    make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    (tmp_path / "banner").write_bytes(b"\x1b[2JAsk ops@example.org for a key\n")
    server = make_sshd(f"Banner {tmp_path}/banner")
    node = server.node("n", identity=str(make_key(tmp_path / "wrong")))
    reply = hello(node)
    assert reply.state == "auth"
    assert "; the server says: Ask ops@example.org for a key" in error_of(reply).message


def test_a_server_that_takes_no_keys_is_offered_none(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("PubkeyAuthentication no", "LogLevel VERBOSE")
    reply = hello(server.node("n"))
    assert reply.state == "auth"
    assert "the server takes no keys" in error_of(reply).message
    assert "publickey" not in server.log


SLOW_SSH = f"""\
#!/bin/sh
printf 'To authenticate, visit:\\n\\033[31m{URL}\\n' >&2
sleep 2
echo 'ada@n: Permission denied (publickey).' >&2
exit 255
"""


def test_the_systems_ssh_that_waits_shows_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ssh").write_text(SLOW_SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(control_master, "BANNER_SECONDS", 0.5)
    folder = control_master.ControlFolder()
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(NodeError, match="denied"):
            folder.master("n").open([], timeouts=Timeouts())
    finally:
        folder.close()
    (said,) = [one.getMessage() for one in caplog.records if URL in one.getMessage()]
    assert said.isprintable()


def children() -> list[psutil.Process]:
    """Return what runs below us."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("false", "it ended with exit status 1 and no word"),
        ("nc-that-is-missing %h %p", "not found"),
        ("nc-that-is-missing %h %p 2>/dev/null", "exit status 127"),
        ("sh -c 'echo no session manager plugin >&2; exit 255'", "no session manager plugin"),
        ("true", "the server closed the connection"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "then silent"),
        ("sh -c 'echo TargetNotConnected >&2; sleep 60'", "TargetNotConnected"),
    ],
)
def test_a_proxy_command_that_fails_is_named_and_max_startups_is_not(
    own_state: Path, ssh_config: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.setattr(paramiko_login, "RETRY_SECONDS", 0.001)
    ssh_config.write_text(f"ProxyCommand {command}\n")
    node = Node(host="127.0.0.1", name="n", ssh=Ssh(port=free_port()))
    reply = hello(node, timeouts=Timeouts(handshake=2))
    error = error_of(reply)
    assert "ProxyCommand" in error.message + error.hint
    assert said in error.message
    assert "MaxStartups" not in error.hint
    assert "ssh " in error.hint
    sleeping = re.compile(r"sleep[ (]60")
    wait_until(
        lambda: not any(sleeping.search(" ".join(one.cmdline())) for one in children()),
        seconds=BUSY,
    )


def test_a_connection_that_breaks_in_the_key_exchange_is_not_max_startups(own_state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.recv(64)

        threading.Thread(target=run, daemon=True).start()
        node = Node(host="127.0.0.1", name="n", ssh=Ssh(port=listener.getsockname()[1], user="u"))
        reply = hello(node)
    error = error_of(reply)
    assert (error.state, error.phase) == ("lost", "kex")
    assert error.hint == f"try: ssh -v -p {node.ssh.port} -l u 127.0.0.1 true"


class Kerberos(Gate):
    """A server that wants a Kerberos ticket."""

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002  (paramiko's)
        return "gssapi-keyex,gssapi-with-mic"

    def check_auth_none(self, username: str) -> int:  # noqa: ARG002  (paramiko's)
        return paramiko.AUTH_FAILED  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("setting", "klist", "hint"),
    [
        ("yes", "true", "OpenSSH can use your Kerberos ticket: set `ssh: {via: openssh}`"),
        ("yes", "false", "kinit, then set `ssh: {via: openssh}` in hosts.yaml"),
        ("no", "false", "and GSSAPIAuthentication yes in ssh_config"),
    ],
)
def test_a_server_that_wants_a_ticket_names_the_way_to_use_one(
    serve: Callable[[Gate], int],
    ssh_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    klist: str,
    hint: str,
) -> None:
    ssh_config.write_text(f"GSSAPIAuthentication {setting}\n")
    (tmp_path / "klist").write_text(f"#!/bin/sh\nexec {klist}\n")
    (tmp_path / "klist").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NodeError) as caught:
        connect(serve(Kerberos(0)), make_key(tmp_path / "id"), Timeouts())
    assert caught.value.state == "auth"
    assert hint in caught.value.hint


def test_the_systems_ssh_without_a_ticket_hints_at_kinit() -> None:
    said = "root@n: Permission denied (gssapi-keyex,gssapi-with-mic)."
    master = control_master.ControlMaster(Path("m"), "n")
    assert "kinit" in master.failure(said).hint
    both = "root@n: Permission denied (publickey,gssapi-keyex,gssapi-with-mic)."
    assert "ssh -fNM n" in master.failure(both).hint


def test_a_login_leaves_no_garbage(sshd: Sshd) -> None:
    """An error that its own frame holds keeps all frames of its thread; a key is the second try."""

    def refusals() -> int:
        return sum(type(one) is paramiko.BadAuthenticationType for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = refusals()
        with Pool(cluster_of(sshd.node("n"))) as pool:
            (reply,) = pool.call({"n": HELLO})
            assert reply.ok, reply
            wait_until(lambda: refusals() == before)
    finally:
        gc.enable()
