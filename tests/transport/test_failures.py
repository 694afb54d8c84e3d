"""Every way to fail, provoked for real: one reply, its state, its phase, the server's words."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.safe_text import WORDS_LIMIT, printable_words
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.interface import Call, Reply, Request, Timeouts
from clusterctl.transport.pending_call import PendingCall
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import paramiko_login
from clusterctl.transport.ssh.host_keys import own_file
from clusterctl.transport.ssh.paramiko_connection import ChannelStream, Transport
from clusterctl.transport.ssh.sockets import connect
from tests.failed_reply import error_of
from tests.sshd_servers import HELLO, Sshd, cluster_of, hello, make_key, opened

QUICK = Timeouts(connect=1, handshake=1, auth=2, answer=3, silence=3)
"""For a host that never answers; one that answers has the usual time, however busy it is."""
FREEZES = Timeouts(handshake=4, silence=3)
"""For a host that answers until it freezes; its agent sends a heartbeat every two seconds."""
MOUNT_FAILS = os.geteuid() != 0 or bool(
    subprocess.run(
        ["unshare", "-m", "mount", "--bind", "/usr/bin", "/usr/bin"],
        capture_output=True,
        check=False,
    ).returncode
)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server of ours that treats each connection so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(connection)
                serve(connection)

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for connection in accepted:
            connection.close()


def test_refused() -> None:
    port = free_port()
    reply = hello(Node(host="127.0.0.1", name="n", ssh=Ssh(port=port)))
    assert (reply.state, error_of(reply).phase) == ("refused", "connect")
    assert error_of(reply).message == f"127.0.0.1:{port}: Connection refused"
    assert error_of(reply).hint


def test_an_unknown_name() -> None:
    reply = hello(Node(host="no-such-host.invalid", name="n", ssh=Ssh()))
    assert (reply.state, error_of(reply).phase) == ("unreachable", "resolve")
    assert "no-such-host.invalid" in error_of(reply).message
    assert (error_of(reply).hint or "").endswith("getent hosts no-such-host.invalid")


@pytest.mark.parametrize("host", ["gpu1..lan", "x" * 64])
def test_a_name_that_none_can_have(host: str) -> None:
    reply = hello(Node(host=host, name="a", ssh=Ssh(port=22, user="u")))
    assert (reply.state, error_of(reply).phase) == ("unreachable", "resolve")
    assert "not a host's name" in error_of(reply).message


def test_an_address_of_a_family_that_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        wanted = (socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        none = (socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        # As with ipv6.disable=1: the resolver tells IPv6 addresses, the kernel has no sockets.
        families = [(999, *none), (socket.AF_INET, *wanted)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: families)

        connect("gpu1", port, timeout=5).close()

        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: families[:1])
        with pytest.raises(NodeError) as caught:
            connect("gpu1", port, timeout=5)
    assert caught.value.state == "lost"


def test_a_surprise_while_a_call_starts_is_the_nodes_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start() -> Call:
        raise RuntimeError("never thought of")

    call = PendingCall(Node(host="a", name="a", ssh=Ssh()), start)

    assert list(call.messages()) == []
    assert (call.reply().state, error_of(call.reply()).message) == (
        "bad-output",
        "RuntimeError: never thought of",
    )
    assert "a: unforeseen" in caplog.text


@pytest.mark.parametrize(
    ("error", "saved", "words"),
    [
        (paramiko.SSHException("Key-exchange timed out"), None, "timed out"),
        (EOFError(), None, "connection was closed"),
        (EOFError(), paramiko.SSHException("the server ignored the window"), "ignored"),
    ],
)
def test_what_paramiko_raises_is_a_lost_connection(
    error: Exception, saved: Exception | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Channel:
        out_buffer_cv = threading.Condition()
        out_window_size = 1

        def settimeout(self, _seconds: float) -> None: ...

        def recv(self, _count: int) -> bytes:
            raise error

        def send(self, _data: bytes) -> None:
            raise error

    ours, theirs = socket.socketpair()
    transport = Transport(ours)
    transport.saved_exception = saved
    monkeypatch.setattr(transport, "join", lambda _seconds: None)  # its thread has ended
    stream = ChannelStream(cast("paramiko.Channel", Channel()), transport)
    with ours, theirs:
        with pytest.raises(ConnectionError, match=words):
            stream.receive(1)
        with pytest.raises(ConnectionError, match=words):
            stream.send(b"x", 1)


def test_a_host_key_that_cannot_be_recorded(
    make_sshd: Callable[..., Sshd], own_state: Path
) -> None:
    server = make_sshd(known=False)
    folder = own_state / "clusterctl" / "t"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the cluster's folder should be")

    reply = hello(server.node(), accept_new=True)

    assert (reply.state, error_of(reply).phase) == ("hostkey", "hostkey")
    assert "cannot be recorded" in error_of(reply).message
    assert "CLUSTERCTL_STATE" in error_of(reply).hint


def test_a_silent_port() -> None:
    with listening(lambda _connection: None) as port:
        began = time.monotonic()
        reply = hello(Node(host="127.0.0.1", name="n", ssh=Ssh(port=port)), QUICK)
    assert (reply.state, error_of(reply).phase) == ("timeout", "banner")
    assert time.monotonic() - began < Timeouts().handshake


def test_a_dropped_banner_is_tried_again(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paramiko_login, "RETRY_SECONDS", 0.02)
    drops: list[int] = []
    opened = contextlib.ExitStack()

    def drop_three(connection: socket.socket) -> None:
        if len(drops) < 3:
            drops.append(1)
            connection.close()
            return
        onward = opened.enter_context(socket.create_connection(("127.0.0.1", sshd.port)))
        for source, sink in ((connection, onward), (onward, connection)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    with opened, listening(drop_three) as port:
        node = sshd.node("n", port=port)
        reply = hello(node, accept_new=True)
    assert reply.ok, reply
    assert len(drops) == 3


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_a_server_that_always_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paramiko_login, "RETRY_SECONDS", 0.02)
    tries: list[int] = []

    def drop(connection: socket.socket) -> None:
        tries.append(1)
        connection.sendall(b"Exceeded MaxStartups\r\n")
        connection.close()

    with listening(drop) as port:
        reply = hello(Node(host="127.0.0.1", name="n", ssh=Ssh(port=port)))
    assert (reply.state, error_of(reply).phase) == ("lost", "banner")
    assert "Exceeded MaxStartups" in error_of(reply).message
    assert "MaxStartups" in error_of(reply).hint
    assert len(tries) == paramiko_login.BANNER_TRIES


def test_a_penalty_is_not_made_worse() -> None:
    tries: list[int] = []

    def penalise(connection: socket.socket) -> None:
        tries.append(1)
        connection.sendall(b"Not allowed at this time\r\n")
        connection.close()

    with listening(penalise) as port:
        reply = hello(Node(host="127.0.0.1", name="n", ssh=Ssh(port=port)))
    assert reply.state == "lost"
    assert "Not allowed at this time" in error_of(reply).message
    assert len(tries) == 1


def test_something_else_listens_there() -> None:
    def speak_http(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\n\r\n")
        connection.close()

    with listening(speak_http) as port:
        reply = hello(Node(host="127.0.0.1", name="n", ssh=Ssh(port=port)))
    assert (reply.state, error_of(reply).phase) == ("bad-output", "banner")
    assert "HTTP/1.1 400 Bad Request" in error_of(reply).message


def test_a_wrong_key_is_offered_once(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd("LogLevel VERBOSE")
    wrong = make_key(tmp_path / "wrong")
    reply = hello(server.node("n", identity=str(wrong)))
    assert (reply.state, error_of(reply).phase) == ("auth", "auth")
    assert str(wrong) in error_of(reply).message
    assert "ssh-copy-id" in error_of(reply).hint
    assert server.log.count("Connection from") == 1  # never tried again
    assert server.log.count("Failed publickey") == 1


def test_a_missing_key(sshd: Sshd, tmp_path: Path) -> None:
    reply = hello(sshd.node("n", identity=str(tmp_path / "none")))
    assert reply.state == "auth"
    assert "none: No such file or directory" in error_of(reply).message


def test_an_encrypted_key_without_a_terminal(sshd: Sshd, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", passphrase="secret words")
    reply = hello(sshd.node("n", identity=str(locked)))
    assert reply.state == "auth"
    assert "needs its passphrase" in error_of(reply).message


def test_an_unknown_host_key_shows_its_fingerprint(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd(known=False)
    reply = hello(server.node("n"))
    assert (reply.state, error_of(reply).phase) == ("hostkey", "hostkey")
    assert "SHA256:" in error_of(reply).message
    assert "--accept-new" in error_of(reply).hint


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
def test_accept_new_records_the_key_once_for_all_and_tells_its_fingerprint(
    make_sshd: Callable[..., Sshd], own_state: Path, caplog: pytest.LogCaptureFixture, via: str
) -> None:
    server = make_sshd(known=False)
    node = server.node("n", via=via)
    with Pool(cluster_of(node), accept_new=True) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    told = record.getMessage()
    assert f"[127.0.0.1]:{server.port}: accepted a new host key" in told
    assert f"ssh-ed25519 {server.fingerprint}" in told
    assert str(own_state / "clusterctl" / "t" / "known_hosts") in told
    caplog.clear()
    with Pool(cluster_of(node), accept_new=True) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]
    assert not caplog.records
    assert hello(node).ok


def test_host_keys_survive_renaming_the_cluster(make_sshd: Callable[..., Sshd]) -> None:
    server, other = make_sshd(known=False), make_sshd(known=False)
    with Pool(cluster_of(server.node("n")), accept_new=True) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]

    renamed = Cluster(name="renamed", nodes=(server.node("n"), other.node("other")))
    with Pool(renamed) as pool:
        replies = {reply.node: reply for reply in pool.open()}
    assert replies["n"].ok
    assert "is not known" in error_of(replies["other"]).message
    assert own_file("renamed").read_text() == server.known_line


def test_another_clusters_key_for_a_name_is_no_proof_against_a_host(
    make_sshd: Callable[..., Sshd], own_state: Path
) -> None:
    """Two networks may use one private address: unknown, not changed."""
    server, other = make_sshd(known=False), make_sshd(known=False)
    known = own_state / "clusterctl" / "elsewhere" / "known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text(f"[127.0.0.1]:{server.port} {other.public_key}\n")
    reply = hello(server.node("n"))
    assert (reply.state, "is not known" in error_of(reply).message) == ("hostkey", True)
    with Pool(cluster_of(server.node("n")), accept_new=True) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]


def test_a_changed_host_key_is_refused_even_with_accept_new(
    make_sshd: Callable[..., Sshd], own_state: Path
) -> None:
    server = make_sshd(known=False)
    other = make_sshd(known=False)
    known = own_state / "clusterctl" / "t" / "known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text(f"[127.0.0.1]:{server.port} {other.public_key}\n")
    reply = opened(server.node("n"), accept_new=True)
    assert reply.state == "hostkey"
    assert f"{known}:1" in error_of(reply).message
    assert "clusterctl forget 127.0.0.1" in error_of(reply).hint


def test_a_frozen_server_is_a_timeout(sshd: Sshd) -> None:
    node = sshd.node("n")
    with Pool(cluster_of(node), timeouts=FREEZES) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]
        sshd.freeze()
        began = time.monotonic()
        (reply,) = pool.call({"n": HELLO})
    assert reply.state == "timeout", reply
    assert time.monotonic() - began < Timeouts().answer


def test_a_server_frozen_in_the_middle_is_a_timeout(sshd: Sshd) -> None:
    reply, seconds = in_the_middle(sshd, sshd.freeze)
    assert (reply.state, error_of(reply).phase) == ("timeout", "answer"), reply
    assert seconds < Timeouts().silence


def test_a_connection_killed_in_the_middle_is_lost(sshd: Sshd) -> None:
    reply, seconds = in_the_middle(sshd, lambda: kill(sshd, "sshd"))
    assert (reply.state, error_of(reply).phase) == ("lost", "answer"), reply
    assert seconds < FREEZES.silence


def test_an_agent_killed_in_the_middle_is_lost(sshd: Sshd) -> None:
    reply, _ = in_the_middle(sshd, lambda: kill(sshd, "python"))
    assert (reply.state, error_of(reply).phase) == ("lost", "answer"), reply
    assert error_of(reply).message == "the agent ended (killed) before its last answer"


def in_the_middle(server: Sshd, happens: Callable[[], None]) -> tuple[Reply, float]:
    """Start an operation that waits for more, let something happen, and return its reply."""
    with Pool(cluster_of(server.node("n")), timeouts=FREEZES) as pool:
        call = pool.start("n", Request(op="echo", args={}))
        messages = call.messages()
        next(messages)
        happens()
        began = time.monotonic()
        assert list(messages) == []
        seconds = time.monotonic() - began
        reply = call.reply()
        call.close()
    return reply, seconds


def kill(server: Sshd, name: str) -> None:
    for pid in server.sessions():
        if Path(f"/proc/{pid}/comm").read_text().startswith(name):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("rc", "state"),
    [
        ("echo noise; printf 'no newline'", "ok"),
        ("head -c 300000 /dev/zero; echo; echo noise >&2", "ok"),
        ("exit 3", "bad-output"),
        ("echo This account is closed; exit 1", "bad-output"),
        ("exec cat >/dev/null", "timeout"),
        ("echo '/bin/sh: 1: Cannot fork' >&2; exit 2", "lost"),
    ],
)
def test_a_login_shell_with_its_own_mind(
    make_sshd: Callable[..., Sshd], tmp_path: Path, rc: str, state: str
) -> None:
    # ForceCommand stands in for the start files: the same shell, the same order.
    script = tmp_path / "login"
    script.write_text(f'#!/bin/sh\n{rc}\neval "$SSH_ORIGINAL_COMMAND"\n')
    script.chmod(0o755)
    timeouts = Timeouts(answer=2) if state == "timeout" else None
    reply = hello(make_sshd(f"ForceCommand {script}").node("n"), timeouts)
    assert reply.state == state, reply
    if "closed" in rc:
        assert "This account is closed" in error_of(reply).message
    if rc == "exit 3":
        assert "a start file of the login shell" in error_of(reply).hint
    if "fork" in rc:
        error = error_of(reply)
        assert error.phase == "limit"
        assert error.message.endswith("/bin/sh: 1: Cannot fork")
        assert "nproc and nofile in /etc/security/limits.conf" in error.hint


def test_a_start_file_that_prints_in_the_middle(
    make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    script = tmp_path / "login"
    script.write_text(
        '#!/bin/sh\n(sleep 1; echo "you have mail") &\neval "$SSH_ORIGINAL_COMMAND"\n'
    )
    script.chmod(0o755)
    server = make_sshd(f"ForceCommand {script}")
    with Pool(cluster_of(server.node("n"))) as pool:
        (reply,) = pool.call({"n": Request(op="echo", args={})})
    assert (reply.state, error_of(reply).phase) == ("bad-output", "answer"), reply
    assert "not ours" in error_of(reply).message
    assert "start file" in error_of(reply).hint


@pytest.mark.netns
@pytest.mark.skipif(MOUNT_FAILS, reason="needs root and mount namespaces")
def test_a_node_without_python(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    shutil.copy("/bin/sh", bare / "sh")
    script = tmp_path / "login"
    # A private mount puts a folder that holds nothing but a shell in the place of /usr/bin.
    command = f'mount --bind {bare} /usr/bin; PATH={bare}; eval "$SSH_ORIGINAL_COMMAND"'
    script.write_text(f"#!/bin/sh\nexec unshare -m /bin/sh -c '{command}'\n")
    script.chmod(0o755)
    reply = hello(make_sshd(f"ForceCommand {script}").node("n"))
    assert reply.state == "bad-output"
    assert error_of(reply).message == "no Python 3.9 or newer was found"


def test_an_operation_that_crashes_says_how(sshd: Sshd) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.call({"n": Request(op="no-such-operation", args={})})
    assert (reply.state, error_of(reply).message) == ("bad-output", "KeyError: 'no-such-operation'")


def test_one_dead_node_does_not_hide_the_others(sshd: Sshd) -> None:
    dead = Node(host="127.0.0.1", name="dead", ssh=Ssh(port=free_port()))
    with Pool(cluster_of(dead, sshd.node("alive"))) as pool:
        request = HELLO
        replies = {r.node: r.state for r in pool.call({"dead": request, "alive": request})}
        again = {r.node: r.state for r in pool.open()}
    assert replies == again == {"dead": "refused", "alive": "ok"}


def test_starting_on_a_dead_node_is_its_failed_reply() -> None:
    dead = Node(host="127.0.0.1", name="dead", ssh=Ssh(port=free_port()))
    with Pool(cluster_of(dead)) as pool:
        call = pool.start("dead", HELLO)
        assert list(call.messages()) == []
        error = error_of(call.reply())
    assert (error.state, error.phase, error.node) == ("refused", "connect", "dead")


def test_a_call_has_a_limit(sshd: Sshd) -> None:
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.call({"n": Request(op="echo", args={})}, timeout=1)
    assert reply.state == "timeout"
    assert "not done in 1 s" in error_of(reply).message


def test_more_sessions_than_the_server_allows(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("MaxSessions 1")
    with Pool(cluster_of(server.node("n"))) as pool:
        call = pool.start("n", Request(op="echo", args={}))
        next(call.messages())
        (reply,) = pool.call({"n": HELLO})
        call.close()
    assert (reply.state, error_of(reply).phase) == ("refused", "open")
    assert "MaxSessions" in error_of(reply).hint


def test_a_session_waits_for_room(make_sshd: Callable[..., Sshd]) -> None:
    """Threads share a connection, and what just ended still counts at the server."""
    server = make_sshd("MaxSessions 1")
    with Pool(cluster_of(server.node("n"))) as pool:
        call = pool.start("n", Request(op="echo", args={}))
        next(call.messages())
        closing = threading.Timer(0.5, call.close)
        closing.start()
        (reply,) = pool.call({"n": HELLO})
        closing.join()
    assert reply.ok, reply


def test_a_slow_key_exchange_is_said(
    make_sshd: Callable[..., Sshd], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_sshd("KexAlgorithms diffie-hellman-group14-sha256")
    assert hello(server.node("n")).ok
    assert "only a slow key exchange is offered" in caplog.text


def test_a_server_that_shares_no_algorithm(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("KexAlgorithms diffie-hellman-group18-sha512")
    reply = hello(server.node("n"))
    assert (reply.state, error_of(reply).phase) == ("refused", "kex")
    assert "via: openssh" in error_of(reply).hint


@given(st.binary())
def test_any_words_become_one_safe_line(words: bytes) -> None:
    shown = printable_words(words)
    assert shown.isprintable()
    assert len(shown) <= WORDS_LIMIT
    assert printable_words(shown) == shown or "\\" in shown
