"""What ssh_config asks for and clusterctl never does: forwarding, unchecked hosts, SHA-1."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.transport.connector import Connector
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.ssh.paramiko_connection import ParamikoConnection
from tests.failed_reply import error_of
from tests.sshd_servers import Sshd, hello

VIAS = ("paramiko", "openssh")


@pytest.fixture
def ssh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that every ssh of this test reads in the place of the user's ssh_config."""
    real = shutil.which("ssh")
    settings, folder = tmp_path / "ssh_config", tmp_path / "bin"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec {real} -F {settings} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return settings


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start an SSH agent for the test."""
    path = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()  # it listens
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    process.stdout.close()


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.usefixtures("agent")
def test_no_agent_display_or_port_is_forwarded(
    make_sshd: Callable[..., Sshd], ssh_settings: Path, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    ssh_settings.write_text(
        "ForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\n"
        "RemoteForward 0 localhost:9\nLocalForward 9 localhost:9\n"
    )
    server = make_sshd("LogLevel DEBUG1", "X11Forwarding yes")
    reply = hello(server.node("n", via=via))
    assert reply.ok, reply
    assert "session_input_channel_req" in server.log, "the log names requests"
    for request in ("auth-agent-req", "x11-req", "tcpip-forward", "direct-tcpip"):
        assert request not in server.log


@pytest.mark.parametrize("via", VIAS)
def test_an_unknown_host_is_refused_whatever_ssh_config_says(
    make_sshd: Callable[..., Sshd], ssh_settings: Path, via: str
) -> None:
    ssh_settings.write_text("StrictHostKeyChecking no\nCheckHostIP no\n")
    server = make_sshd("LogLevel DEBUG1", known=False)
    reply = hello(server.node("n", via=via))
    assert reply.state == "hostkey", reply
    assert "KEX done" in server.log or "Connection from" in server.log, "it was reached"
    assert "userauth-request" not in server.log, "no key was offered"


@pytest.mark.parametrize(
    "setting",
    ["KexAlgorithms diffie-hellman-group14-sha1", "KexAlgorithms diffie-hellman-group1-sha1"],
)
@pytest.mark.parametrize("via", VIAS)
def test_a_server_that_offers_sha_1_alone_is_refused(
    make_sshd: Callable[..., Sshd], setting: str, via: str
) -> None:
    server = make_sshd(setting)
    node = server.node("n", via=via)
    reply = hello(node)
    assert not reply.ok, reply
    assert error_of(reply).message
    assert "Accepted" not in server.log


def test_an_rsa_host_key_is_proven_with_sha_2_only(
    make_sshd: Callable[..., Sshd], own_state: Path, tmp_path: Path
) -> None:
    key = tmp_path / "rsa"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(key)], check=True
    )
    states = {}
    for algorithm in ("rsa-sha2-512", "ssh-rsa"):
        server = make_sshd(f"HostKey {key}", f"HostKeyAlgorithms {algorithm}")
        kind, text, *_ = key.with_suffix(".pub").read_text().split()
        known = own_state / "clusterctl" / "t" / "known_hosts"
        known.write_text(f"[127.0.0.1]:{server.port} {kind} {text}\n")
        reply = hello(server.node("n"))
        states[algorithm] = reply.ok
    assert states == {"rsa-sha2-512": True, "ssh-rsa": False}


def test_strict_key_exchange_is_agreed_on(sshd: Sshd) -> None:
    """Terrapin, CVE-2023-48795: nobody on the way can leave out messages of the handshake."""
    connector = Connector("t", timeouts=Timeouts(), accept_new=False)
    try:
        connection = connector.connect(sshd.node("n"))
        assert isinstance(connection, ParamikoConnection)
        assert connection.transport.agreed_on_strict_kex  # type: ignore[attr-defined]
    finally:
        connector.close()
