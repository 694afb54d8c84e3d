"""The ways to a node other than a plain connection: jump hosts, ProxyCommand, the system's ssh."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.errors import CouldNotTell, NodeError, UsageError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.concurrency_limit import FIRST_WINDOW, LOGINS_AT_ONCE, SILENT_SECONDS
from clusterctl.transport.connector import Connector
from clusterctl.transport.interface import Request, Timeouts
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import control_master, ssh_config
from clusterctl.transport.ssh.control_master import WORDS_LIMIT, ControlFolder, ControlMaster
from clusterctl.transport.ssh.jump_hosts import JumpHost, JumpHosts, run_proxy_command
from clusterctl.transport.ssh.ssh_config import Endpoint
from clusterctl.transport.stream import ERRORS_LIMIT
from tests.failed_reply import error_of
from tests.sshd_servers import USER, Sshd, cluster_of, hello, make_key, opened
from tests.waiting import wait_until

HELLO = Request(op="hello", args={"x": "y"})


def test_many_nodes_behind_one_jump_host_log_in_there_once(make_sshd: Callable[..., Sshd]) -> None:
    gateway, target = make_sshd("LogLevel VERBOSE"), make_sshd()
    jump = f"{USER}@127.0.0.1:{gateway.port}"
    nodes = [target.node(f"n{i}", jump=jump) for i in range(12)]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({node.name: HELLO for node in nodes}))
    assert {reply.state for reply in replies} == {"ok"}, replies
    assert gateway.log.count("Accepted publickey") == 1


def test_two_jump_hosts_that_are_reached_at_once_are_two(
    make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways, target = [make_sshd(), make_sshd()], make_sshd()
    controls: list[Path] = []
    both = threading.Barrier(2)
    open_one = ControlMaster.open

    def open_both(self: ControlMaster, options: Sequence[str], **how: Any) -> None:
        controls.append(self.control)
        both.wait(10)  # each has its socket's name before either has the socket
        open_one(self, options, **how)

    monkeypatch.setattr(ControlMaster, "open", open_both)
    nodes = [
        target.node(f"n{i}", jump=f"{USER}@127.0.0.1:{gateway.port}")
        for i, gateway in enumerate(gateways)
    ]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({node.name: HELLO for node in nodes}))
    assert {reply.state for reply in replies} == {"ok"}, replies
    assert len(set(controls)) == 2


def test_what_is_logged_in_to_while_all_is_closed_is_closed_too(sshd: Sshd) -> None:
    ways = Connector("t", timeouts=Timeouts(), accept_new=False)
    nodes = [
        sshd.node(f"n{number}", jump=f"{USER}@127.0.0.1:{sshd.port}", identity=str(sshd.identity))
        for number in range(3)
    ]
    threads = [
        threading.Thread(target=connect_quietly, args=(ways, node), daemon=True) for node in nodes
    ]
    for thread in threads:
        thread.start()
    while not ways._jumps._opening:
        time.sleep(0.001)
    ways.close()
    for thread in threads:
        thread.join(10)
    wait_until(lambda: not sshd.sessions(), seconds=10)
    assert ways.folder._path is None or not ways.folder._path.exists()


def test_a_folder_of_a_command_that_was_killed_is_removed_by_the_next_when_no_master_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (
        f"cctl-{ended.pid}-a",
        f"cctl-{ended.pid}-full",
        f"cctl-{ended.pid}-sync",
        f"cctl-{os.getpid()}-b",
        "cctl-c",
    ):
        (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / f"cctl-{ended.pid}-sync" / "r-1"))
    (tmp_path / f"cctl-{ended.pid}-full" / "m0").touch()
    monkeypatch.setattr(control_master, "LONGEST_PARENT", len(str(tmp_path)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = ControlFolder()
    mine = folder.path
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"cctl-{ended.pid}-full", f"cctl-{os.getpid()}-b", "cctl-c", mine.name}

    folder.close()
    assert not mine.exists()
    with pytest.raises(NodeError, match="closed"):
        folder.master("n")


@pytest.mark.parametrize(
    ("length", "writable", "wanted"),
    [(12, True, "/scratch/ada"), (11, True, "/tmp"), (11, False, "/scratch/ada")],
)
def test_sockets_lie_in_tmpdir_where_their_paths_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, *, length: int, writable: bool, wanted: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/ada")
    monkeypatch.setattr(control_master, "LONGEST_PARENT", length)
    monkeypatch.setattr(os, "access", lambda _path, _mode: writable)
    assert control_master._parent() == wanted


TALKS_WITHOUT_MEASURE = """\
#!/bin/sh
echo "Warning: Permanently added 'n' (ED25519) to the list of known hosts." >&2
head -c 50000000 /dev/zero | tr '\\0' x >&2
echo >&2
echo "ada@n: Permission denied (publickey)." >&2
exit 255
"""


def test_a_host_that_sends_a_banner_without_end_fills_neither_disk_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(TALKS_WITHOUT_MEASURE)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = ControlFolder()
    master = folder.master("n")
    try:
        with pytest.raises(NodeError, match="Permission denied") as caught:
            master.open([], timeouts=Timeouts())
    finally:
        folder.close()
    assert caught.value.state == "auth"
    assert len(caught.value.message) <= WORDS_LIMIT
    assert len(master.stderr()) <= ERRORS_LIMIT
    assert "Permanently added 'n'" in master.stderr()


def test_a_proxy_command_that_writes_without_end_fills_no_disk() -> None:
    command = "sh -c 'head -c 50000000 /dev/zero >&2; echo done; exec cat'"
    endpoint = Endpoint(host="n", hostname="n", port=22, user="u", proxy_command=command)
    with run_proxy_command(endpoint) as sock:
        assert sock.recv(100) == b"done\n"
        sizes = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one of the listing itself
                sizes.append(descriptor.stat().st_size)
    assert max(sizes) < 50_000_000


def test_a_machine_without_further_threads_is_named_with_openssh_too(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_thread(*_: object, name: str) -> None:
        raise CouldNotTell(f"no more threads: {name}", hint="raise the limit")

    monkeypatch.setattr("clusterctl.transport.stream.start_thread", start_thread)
    reply = hello(sshd.node("n", via="openssh"))
    error = error_of(reply)
    assert (error.message, error.hint) == ("no more threads: stderr", "raise the limit")


@pytest.mark.parametrize("via", ["openssh", "jump"])
def test_a_command_that_is_interrupted_at_any_moment_leaves_no_folder(
    make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    """A thread that is just connecting would make the folder once it was removed."""
    folders: list[Path] = []
    make = tempfile.mkdtemp

    def note(**where: str) -> str:
        folders.append(Path(make(**where)))
        return str(folders[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", note)
    sshd, port = make_sshd("MaxStartups 30"), free_port()
    jump = f"{USER}@127.0.0.1:{sshd.port}"
    ssh = {"via": "openssh"} if via == "openssh" else {"jump": jump}
    nodes = [sshd.node("good", **ssh), sshd.node("refused", **{**ssh, "port": port})]
    for moment in range(12):
        pool = Pool(cluster_of(*nodes))
        pool.begin()
        time.sleep(moment * 0.015)
        pool.close()
    time.sleep(0.5)
    assert folders
    assert [folder for folder in folders if folder.exists()] == []


def connect_quietly(ways: Connector, node: Node) -> None:
    with suppress(NodeError):
        ways.connect(node)


def test_a_node_that_refuses_behind_a_jump_host(sshd: Sshd) -> None:
    dead = sshd.node("n", jump=f"{USER}@127.0.0.1:{sshd.port}", port=free_port())
    reply = hello(dead)
    assert (reply.state, error_of(reply).phase) == ("refused", "jump"), reply
    assert "Connection refused" in error_of(reply).message


def test_a_jump_host_that_does_not_let_us_in(sshd: Sshd, tmp_path: Path) -> None:
    wrong = make_key(tmp_path / "wrong")
    node = sshd.node("n", jump=f"{USER}@127.0.0.1:{sshd.port}", identity=str(wrong))
    reply = hello(node)
    assert (reply.state, error_of(reply).phase) == ("auth", "jump"), reply
    assert "Permission denied" in error_of(reply).message


def test_a_jump_host_that_is_not_known(make_sshd: Callable[..., Sshd]) -> None:
    gateway, target = make_sshd(known=False), make_sshd()
    node = target.node("n", jump=f"{USER}@127.0.0.1:{gateway.port}")
    reply = hello(node)
    assert (reply.state, error_of(reply).phase) == ("hostkey", "jump"), reply
    reply = hello(node, accept_new=True)
    assert reply.ok, reply


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
@pytest.mark.parametrize(
    ("are", "state", "said"),
    [
        (("well", "well"), "ok", ""),
        (("unknown", "well"), "hostkey", "jump host {0}: "),
        (("well", "unknown"), "hostkey", "jump host {1}: "),
        (("well", "dead"), "refused", "jump host {1}: "),
    ],
)
def test_two_jump_hosts(
    make_sshd: Callable[..., Sshd], via: str, are: tuple[str, str], state: str, said: str
) -> None:
    """Both are reached with the inventory's key and known hosts, and the one at fault is named."""
    gates = [make_sshd(known=one != "unknown") for one in are]
    target = make_sshd()
    for gate, one in zip(gates, are, strict=True):
        if one == "dead":
            gate.stop()
    jumps = [f"{USER}@127.0.0.1:{gate.port}" for gate in gates]
    nodes = [target.node(f"n{number}", jump=",".join(jumps), via=via) for number in range(2)]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({node.name: HELLO for node in nodes}))
    for reply in replies:
        assert reply.state == state, reply
        if said:
            assert said.format(*jumps) in error_of(reply).message
            assert error_of(reply).phase == "jump"
    logins = [gate.log.count("Accepted publickey") for gate in gates]
    assert logins == [int(are[0] == "well"), int(state == "ok")]


def test_accepted_keys_of_jump_hosts_are_shown(
    make_sshd: Callable[..., Sshd], caplog: pytest.LogCaptureFixture
) -> None:
    gates, target = [make_sshd(known=False), make_sshd(known=False)], make_sshd()
    jump = ",".join(f"{USER}@127.0.0.1:{gate.port}" for gate in gates)
    reply = hello(target.node("n", jump=jump), accept_new=True)
    assert reply.ok, reply
    for gate in gates:
        assert gate.fingerprint in caplog.text


def test_closing_leaves_no_ssh_and_no_socket_behind(sshd: Sshd) -> None:
    node = sshd.node("n", jump=f"{USER}@127.0.0.1:{sshd.port}")
    with Pool(cluster_of(node)) as pool:
        assert [reply.state for reply in pool.call({"n": HELLO})] == ["ok"]
        folder = pool._connector.folder.path
        assert folder.exists()
    assert not folder.exists()
    wait_until(lambda: not any(str(folder) in line for line in command_lines()), seconds=5)


def command_lines() -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return lines


def test_the_systems_own_ssh_takes_a_long_name(sshd: Sshd) -> None:
    node = sshd.node("gpu-highgpu-8g-pool-1-abcdef12-wxyz." + "us-central1-c." * 4, via="openssh")
    reply = hello(node)
    assert reply.ok, reply


def test_the_systems_own_ssh(sshd: Sshd) -> None:
    node = sshd.node("n", via="openssh")
    with Pool(cluster_of(node)) as pool:
        for _ in range(2):
            (reply,) = pool.call({"n": HELLO})
            assert reply.ok, reply
            assert reply.last.head["args"] == {"x": "y"}
        with pytest.raises(UsageError, match="no Fabric connection"):
            pool.connection("n")


@pytest.mark.parametrize("kind", ["refused", "auth", "hostkey"])
def test_what_the_systems_ssh_says_becomes_a_state(
    make_sshd: Callable[..., Sshd], tmp_path: Path, kind: str
) -> None:
    server = make_sshd(known=kind != "hostkey")
    node = server.node("n", via="openssh")
    if kind == "refused":
        node = replace(node, ssh=replace(node.ssh, port=free_port()))
    if kind == "auth":
        node = replace(node, ssh=replace(node.ssh, identity=str(make_key(tmp_path / "wrong"))))
    reply = hello(node)
    assert reply.state == kind, reply
    assert error_of(reply).hint


def test_the_systems_ssh_loses_its_connection(sshd: Sshd) -> None:
    with Pool(cluster_of(sshd.node("n", via="openssh"))) as pool:
        call = pool.start("n", Request(op="echo", args={}))
        messages = call.messages()
        next(messages)
        for pid in sshd.sessions():
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                os.kill(pid, 9)
        assert list(messages) == []
        assert call.reply().state == "lost"
        call.close()


def test_fabric_runs_over_the_open_connection(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("LogLevel VERBOSE")
    with Pool(cluster_of(server.node("n"))) as pool:
        assert pool.connection("n").run("echo 23", hide=True, in_stream=False).stdout == "23\n"
        assert not pool.connection("n").is_connected  # as Fabric's own, before its first use
    assert server.log.count("Accepted publickey") == 1


def test_fabric_closes_nothing_that_is_shared_and_survives_a_cut(
    make_sshd: Callable[..., Sshd],
) -> None:
    sshd = make_sshd("Subsystem sftp internal-sftp")
    request = {"n": HELLO}
    with Pool(cluster_of(sshd.node("n"))) as pool:
        with pool.connection("n") as connection:
            assert connection.run("echo 23", hide=True, in_stream=False).stdout == "23\n"
            assert connection.sftp().listdir("/")
        assert [reply.state for reply in pool.call(request)] == ["ok"]
        assert connection.run("echo 24", hide=True, in_stream=False).stdout == "24\n"
        assert connection.sftp().listdir("/")
        connection.close()
        assert sshd.log.count("Accepted publickey") == 1

        for pid in sshd.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while connection.is_connected:
            time.sleep(0.01)
        assert connection.run("echo 25", hide=True, in_stream=False).stdout == "25\n"
        assert [reply.state for reply in pool.call(request)] == ["ok"]
    assert sshd.log.count("Accepted publickey") == 2
    with pytest.raises(CouldNotTell):
        connection.run("echo 26", hide=True, in_stream=False)


def test_a_proxy_command_of_ssh_config_is_the_way_that_is_taken(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, relay, went = (tmp_path / name for name in ("config", "relay.py", "went"))
    oracle = partial(ssh_config.SshConfigResolver, config=config)
    monkeypatch.setattr("clusterctl.transport.connector.SshConfigResolver", oracle)
    relay.write_text(RELAY)
    config.write_text(f"ProxyCommand {sys.executable} {relay} %h %p > >(tee {went})\n")
    monkeypatch.setenv("SHELL", "/bin/bash")
    reply = hello(sshd.node("n"))
    assert reply.ok, reply
    assert went.read_bytes().startswith(b"SSH-2.0-OpenSSH"), "what the server says came that way"
    config.write_text("ProxyCommand echo no way through >&2; exit 1\n")
    reply = hello(sshd.node("n"))
    assert (reply.state, error_of(reply).phase) == ("lost", "jump")
    assert "no way through" in error_of(reply).message


@pytest.mark.parametrize(
    ("setting", "limits"),
    [
        ("", Timeouts(connect=1, handshake=60)),
        ("ConnectTimeout 90\n", Timeouts(connect=1, handshake=0)),
    ],
)
def test_the_systems_ssh_waits_for_a_proxy_command_that_starts_slowly(
    sshd: Sshd, ssh_config: Path, tmp_path: Path, setting: str, limits: Timeouts
) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    words = "echo Starting session >&2; sleep 2"
    command = f"ProxyCommand sh -c '{words}; exec {sys.executable} {relay} %h %p'\n"
    ssh_config.write_text(setting + command)
    connector = Connector("t", timeouts=limits, accept_new=False)
    try:
        connector.connect(sshd.node("n", via="openssh")).close()
    finally:
        connector.close()


RELAY = """\
import os, select, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for f in select.select([0, s], [], [])[0]:
        d = os.read(0, 65536) if f == 0 else s.recv(65536)
        if not d: sys.exit()
        s.sendall(d) if f == 0 else os.write(1, d)
"""


def test_this_machine_itself_needs_no_ssh() -> None:
    node = Node(host="localhost", name="here", ssh=Ssh(), local=True)
    with Pool(cluster_of(node)) as pool:
        assert [reply.state for reply in pool.open()] == ["ok"]
        (reply,) = pool.call({"here": HELLO})
    assert reply.ok, reply


CONTROLLER = """\
import getpass, sys, time
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool
from clusterctl.transport.stream import ERRORS_LIMIT

port, identity, via = sys.argv[1:]
user = getpass.getuser()
jump = f"{user}@127.0.0.1:{port}" if via == "paramiko" else None
ssh = Ssh(user=user, port=int(port), identity=identity, via=via, jump=jump)
node = Node(host="127.0.0.1", name="n", ssh=ssh)
pool = Pool(Cluster(name="t", nodes=(node,)))
print([reply.state for reply in pool.call({"n": Request(op="hello", args={})})], flush=True)
print(pool._connector.folder.path, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
def test_a_killed_controller_leaves_no_ssh_behind(sshd: Sshd, via: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(sshd.port), str(sshd.identity), via],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "['ok']\n"
        folder = process.stdout.readline().strip()
        assert any(folder in line for line in command_lines())
        process.kill()
    wait_until(lambda: not any(folder in line for line in command_lines()), seconds=5)
    shutil.rmtree(folder, ignore_errors=True)  # or another test's controller has swept it


@pytest.mark.parametrize(
    ("config", "most"),
    [("", int(FIRST_WINDOW)), ("Host n*\n  ProxyJump gateway\n", LOGINS_AT_ONCE)],
)
def test_logins_by_openssh_keep_their_turns_until_they_have_ended(
    ssh_config: Path, monkeypatch: pytest.MonkeyPatch, config: str, most: int
) -> None:
    ssh_config.write_text(config)
    begun = []
    ends = threading.Event()

    def log_in(master: ControlMaster, *_: object, **__: object) -> None:
        begun.append(master.target)
        ends.wait(60)
        raise NodeError("lost", "connect", "enough")

    monkeypatch.setattr(ControlMaster, "open", log_in)
    nodes = [Node(host=f"n{i}", name=f"n{i}", ssh=Ssh(via="openssh")) for i in range(40)]
    with Pool(cluster_of(*nodes)) as pool:
        pool.begin()
        wait_until(lambda: len(begun) >= most)
        time.sleep(3 * SILENT_SECONDS)
        assert len(begun) == most
        ends.set()


class SilentJumpHost:
    """Opens ways to hosts that say nothing."""

    def __init__(self) -> None:
        self.master = SimpleNamespace(running=True)
        self.dialed: list[tuple[str, tuple[socket.socket, socket.socket]]] = []

    def dial(self, target: str) -> socket.socket:
        pair = socket.socketpair()
        self.dialed.append((target, pair))
        return pair[0]


def test_a_jump_host_that_is_slow_to_log_in_to_does_not_let_all_nodes_in_at_once(
    ssh_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_config.touch()
    gateway = SilentJumpHost()

    def slow(*_: object) -> SilentJumpHost:
        time.sleep(4 * SILENT_SECONDS)
        return gateway

    monkeypatch.setattr(JumpHosts, "_log_in_to", slow)
    monkeypatch.setattr("clusterctl.transport.ssh.jump_hosts.JumpHost", SilentJumpHost)
    nodes = [Node(host=f"n{i}", name=f"n{i}", ssh=Ssh(jump="gateway")) for i in range(40)]
    with Pool(cluster_of(*nodes)) as pool:
        pool.begin()
        wait_until(lambda: len(gateway.dialed) >= FIRST_WINDOW)
        time.sleep(3 * SILENT_SECONDS)
        assert len(gateway.dialed) == FIRST_WINDOW
        pool._connector._limit.close()
        for _, (_, theirs) in gateway.dialed:
            theirs.close()


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
def test_a_nodes_login_does_not_contain_that_of_its_jump_host(
    make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    gateway, target = make_sshd(), make_sshd()
    log_in_to = JumpHosts._log_in_to

    def slow(jumps: JumpHosts, jump: str, identity: Path | None) -> JumpHost:
        time.sleep(3)
        return log_in_to(jumps, jump, identity)

    monkeypatch.setattr(JumpHosts, "_log_in_to", slow)
    node = target.node("n", via=via, jump=f"{USER}@127.0.0.1:{gateway.port}")
    reply = opened(node)
    assert reply.ok, reply
    assert reply.seconds < 3
