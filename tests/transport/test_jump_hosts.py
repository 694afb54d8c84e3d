"""A jump host is judged and reached by its own part of ssh_config, and leaves nothing behind."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import control_master
from clusterctl.transport.ssh.control_master import ControlMaster, PersonsMaster
from clusterctl.transport.ssh.host_keys import own_file
from clusterctl.transport.ssh.jump_hosts import JumpHost, ProxySocket
from tests.failed_reply import error_of
from tests.sshd_servers import HELLO, USER, Sshd, cluster_of, make_key
from tests.waiting import wait_until


def hello(*nodes: Node, accept_new: bool = False) -> list[Reply]:
    with Pool(cluster_of(*nodes), accept_new=accept_new) as pool:
        return list(pool.call({node.name: HELLO for node in nodes}))


def bastion_of(gate: Sshd, *lines: str) -> str:
    return "\n  ".join(["Host bastion", "HostName 127.0.0.1", f"Port {gate.port}", *lines]) + "\n"


def lax(jump: str) -> str:
    return (
        f"Host 127.0.0.1\n  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n"
        f"  ProxyJump {jump}\n"
    )


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_of_a_bastion_is_refused_whatever_the_nodes_own_files_are(
    make_sshd: Callable[..., Sshd], ssh_config: Path, tmp_path: Path, *, accept_new: bool
) -> None:
    gate, target = make_sshd(known=False), make_sshd()
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{gate.port} {other}")
    known = f"UserKnownHostsFile {tmp_path}/known"
    ssh_config.write_text(bastion_of(gate, known) + lax("bastion"))

    (reply,) = hello(target.node("n"), accept_new=accept_new)

    assert (reply.state, error_of(reply).phase) == ("hostkey", "jump"), reply
    hint = error_of(reply).hint
    assert "--accept-new" not in hint  # it accepts no key that differs from the recorded one
    subprocess.run(shlex.split(hint[hint.index("ssh-keygen") :]), check=True)
    assert (tmp_path / "known").read_text() == ""
    assert gate.public_key not in own_file("t").read_text()
    assert "Accepted publickey" not in gate.log


@pytest.mark.parametrize("file", ["UserKnownHostsFile", "GlobalKnownHostsFile"])
def test_a_bastion_is_known_by_the_files_that_its_own_part_of_ssh_config_names(
    make_sshd: Callable[..., Sshd], ssh_config: Path, tmp_path: Path, file: str
) -> None:
    gate, target = make_sshd(known=False), make_sshd()
    (tmp_path / "known 100%").write_text(gate.known_line)
    known = f'{file} "{tmp_path}/known 100%%"' if file[0] == "U" else f"{file} {tmp_path}/k"
    (tmp_path / "k").write_text(gate.known_line)
    ssh_config.write_text(bastion_of(gate, known) + lax("bastion"))
    (reply,) = hello(target.node("n"))
    assert reply.ok, reply


def test_a_bastion_behind_another_by_ssh_config_is_checked_as_strictly(
    make_sshd: Callable[..., Sshd], ssh_config: Path
) -> None:
    outer, gate, target = make_sshd(known=False), make_sshd(), make_sshd()
    lines = bastion_of(outer, "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null")
    ssh_config.write_text(
        lines.replace("bastion", "outer") + bastion_of(gate, "ProxyJump outer") + lax("bastion")
    )
    (reply,) = hello(target.node("n"))
    assert (reply.state, error_of(reply).phase) == ("hostkey", "jump"), reply
    assert "jump host outer: " in error_of(reply).message

    (reply,) = hello(target.node("n"), accept_new=True)
    assert reply.ok, reply
    assert outer.public_key in own_file("t").read_text()


def test_bastions_that_lead_to_each_other_are_named(sshd: Sshd, ssh_config: Path) -> None:
    ssh_config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    (reply,) = hello(sshd.node("n", jump="a"))
    assert (reply.state, error_of(reply).phase) == ("unreachable", "jump")
    assert "ssh_config leads in a circle (a,b,a)" in error_of(reply).message


def test_nodes_with_keys_of_their_own_do_not_share_a_login(
    make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    gate, target = make_sshd(), make_sshd()
    jump = f"{USER}@127.0.0.1:{gate.port}"
    wrong = make_key(tmp_path / "wrong")
    nodes = [target.node("bad", jump=jump, identity=str(wrong)), target.node("good", jump=jump)]
    with Pool(cluster_of(*nodes)) as pool:
        states = [next(pool.call({node.name: HELLO})).state for node in nodes]
    assert states == ["auth", "ok"]


@pytest.mark.parametrize("via", ["openssh", "jump"])
def test_a_key_that_another_cluster_accepted_is_good_for_the_systems_ssh_too(
    make_sshd: Callable[..., Sshd], caplog: pytest.LogCaptureFixture, via: str
) -> None:
    gate, target = make_sshd(known=False), make_sshd()
    other = own_file("renamed")
    other.parent.mkdir(parents=True)
    other.write_text(gate.known_line)
    jump = f"{USER}@127.0.0.1:{gate.port}"
    node = gate.node("n", via="openssh") if via == "openssh" else target.node("n", jump=jump)
    (reply,) = hello(node)
    assert reply.ok, reply

    # Another cluster's other key proves nothing, and a key that it accepted is not unseen.
    (reply,) = hello(node, accept_new=True)
    assert reply.ok, reply
    assert "without a comparison" not in caplog.text
    own_file("t").write_text(target.known_line)
    other.write_text(f"[127.0.0.1]:{gate.port} {target.public_key}\n")
    (reply,) = hello(node, accept_new=True)
    assert reply.ok, reply
    assert gate.fingerprint in caplog.text


@pytest.fixture
def opened(
    make_sshd: Callable[..., Sshd], ssh_config: Path, tmp_path: Path
) -> Iterator[tuple[Sshd, Path]]:
    """Yield a server that lets nobody in any more, and the connection to it that was opened."""
    gate = make_sshd()
    control = tmp_path / "cm"
    ssh_config.write_text(
        bastion_of(gate, f"ControlPath {control}", "ControlMaster yes", f"User {USER}")
    )
    known = own_file("t")
    options = [f"-oUserKnownHostsFile={known}", "-oStrictHostKeyChecking=yes"]
    argv = ["ssh", "-MN", "-i", str(gate.identity), *options, "bastion"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as master:
        wait_until(control.exists)
        (gate.folder / "authorized_keys").write_text("")  # as for who has no second factor
        yield gate, control
        master.kill()  # ssh may miss a TERM that comes just before it waits


@pytest.mark.parametrize("via", ["openssh", "paramiko", "jump"])
def test_a_connection_that_the_person_opened_is_used_and_left_open(
    opened: tuple[Sshd, Path], make_sshd: Callable[..., Sshd], ssh_config: Path, via: str
) -> None:
    gate, control = opened
    if via != "jump":
        own = gate.node("n", via=via, port=None, user=None)
        ssh_config.write_text(ssh_config.read_text().replace("Host bastion", "Host 127.0.0.1"))
        nodes = [own]
    else:
        target = make_sshd()
        nodes = [target.node(f"n{number}", jump="bastion") for number in range(4)]
    replies = hello(*nodes)
    assert {reply.state for reply in replies} == {"ok"}, replies
    assert gate.log.count("Accepted publickey") == 1
    assert control.is_socket()
    check = ["ssh", "-S", str(control), "-O", "check", "x"]
    assert subprocess.run(check, check=False).returncode == 0


def test_a_socket_that_nobody_listens_at_is_no_connection(
    opened: tuple[Sshd, Path], make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, control = opened
    target = make_sshd()
    with monkeypatch.context() as patch:
        patch.setattr(PersonsMaster, "uid", -1)
        (reply,) = hello(target.node("another-persons", jump="bastion"))
    assert reply.state == "auth", reply
    control.rename(control.with_name("moved"))
    (reply,) = hello(target.node("n", jump="bastion"))
    assert (reply.state, error_of(reply).phase) == ("auth", "jump"), reply
    assert "ssh -fNM ssh://bastion" in error_of(reply).hint
    control.with_name("moved").rename(control)
    assert gate.log.count("Accepted publickey") == 1


@pytest.mark.parametrize("via", ["openssh", "jump"])
def test_a_host_whose_ssh_forks_is_reached_and_leaves_nothing_behind(
    make_sshd: Callable[..., Sshd], ssh_config: Path, via: str
) -> None:
    gate, target = make_sshd(), make_sshd()
    name = "bastion" if via == "jump" else "127.0.0.1"
    ssh_config.write_text(
        bastion_of(gate, "ForkAfterAuthentication yes").replace("bastion", name, 1)
    )
    node = target.node("n", jump="bastion") if via == "jump" else gate.node("n", via="openssh")
    before = time.monotonic()
    (reply,) = hello(node)
    assert reply.ok, reply
    wait_until(lambda: not gate.sessions(), seconds=10)
    assert time.monotonic() - before < 20


def test_a_persons_connection_is_asked_once_for_many_nodes(
    opened: tuple[Sshd, Path], make_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, control = opened
    checks = 0
    answers = PersonsMaster._answers

    def counted(master: PersonsMaster) -> bool:
        nonlocal checks
        checks += 1
        return answers(master)

    monkeypatch.setattr(PersonsMaster, "_answers", counted)
    target = make_sshd("MaxStartups 30")
    nodes = [target.node(f"n{number}", jump="bastion") for number in range(12)]
    assert {reply.state for reply in hello(*nodes)} == {"ok"}
    assert checks == 1

    master = PersonsMaster(control, "bastion")
    assert master.running
    control.rename(control.with_name("moved"))
    assert not master.running, "a socket that is gone needs no question"
    control.with_name("moved").rename(control)
    monkeypatch.setattr(control_master, "CHECKED_SECONDS", 0.0)
    before = checks
    assert master.running
    assert checks == before + 1


def test_a_proxy_command_that_ignores_a_hangup_ends_with_its_connection() -> None:
    """As all do under nohup."""

    def explain(words: str) -> NodeError:
        return NodeError("lost", "connect", words)

    argv = ["/bin/sh", "-c", "trap '' HUP; echo ready; exec sleep 600"]
    proxy = ProxySocket.start(argv, explain)
    assert proxy.recv(6) == b"ready\n"
    proxy.close()
    wait_until(lambda: proxy._process.poll() is not None)


def test_a_banner_like_a_changed_key_does_not_keep_us(tmp_path: Path) -> None:
    banner = "identification has changed\nOffending X key in a:1\nhost key for x\n" * 1000
    began = time.monotonic()
    error = ControlMaster(tmp_path / "socket", "gate").failure(
        f"{banner}host key verification failed"
    )
    assert (error.state, error.details) == ("hostkey", {})
    assert time.monotonic() - began < 10  # a backtracking search takes hours


def test_a_host_that_its_bastion_does_not_reach_is_tried_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "channel 2: open failed: connect failed: No route to host\r\n"
    monkeypatch.setattr(ControlMaster, "stderr", lambda _self: refused)
    behind = JumpHost(jump="gate1", master=ControlMaster(tmp_path / "socket", "ssh://gate1"))
    error = behind.failure("node3:2222", "")
    assert (error.state, error.phase) == ("unreachable", "jump")
    assert error.hint == "try: ssh -J gate1 -p 2222 node3 true"
