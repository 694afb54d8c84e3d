"""The key exchange that is chosen: post-quantum first, and only what this machine can do."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest

from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh.paramiko_connection import BriefThreads, Transport
from tests.sshd_servers import USER, Sshd, cluster_of, hello
from tests.waiting import wait_until

WITHOUT_X25519 = """\
import getpass, sys
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import x25519

def refuse(cls):
    raise UnsupportedAlgorithm("X25519 is not supported by this version of OpenSSL")

x25519.X25519PrivateKey.generate = classmethod(refuse)
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool

ssh = Ssh(user=getpass.getuser(), port=int(sys.argv[1]), identity=sys.argv[2])
with Pool(Cluster(name="t", nodes=(Node(host="127.0.0.1", name="n", ssh=ssh),))) as pool:
    (reply,) = pool.call({"n": Request(op="hello", args={})})
print(reply.error or "ok")
"""


def test_post_quantum_key_exchange_is_offered_first_and_nothing_is_made_up() -> None:
    transport = Transport.__new__(Transport)
    offered = transport._preferred_kex  # type: ignore[attr-defined]
    assert set(offered) <= set(paramiko.Transport._kex_info)  # type: ignore[attr-defined]
    hybrid = [name.startswith(("mlkem", "sntrup")) for name in offered]
    assert hybrid == sorted(hybrid, reverse=True)
    slow = ["group" in name for name in offered]
    assert slow == sorted(slow)


def test_a_controller_without_x25519_logs_in(sshd: Sshd) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_X25519, str(sshd.port), str(sshd.identity)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "ok\n", done


def test_the_threads_that_make_keys_end(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL keeps state for each: a thousand connections would hold it until they are closed."""
    made: list[threading.Thread] = []

    def recording(start: Callable[[object], None]) -> Callable[[object], None]:
        def record(self: object) -> None:
            made.append(threading.current_thread())
            start(self)

        return record

    for kex in set(paramiko.Transport._kex_info.values()):  # type: ignore[attr-defined]
        monkeypatch.setattr(kex, "start_kex", recording(kex.start_kex))
    with Pool(cluster_of(sshd.node("n"))) as pool:
        (reply,) = pool.call({"n": Request(op="hello", args={})})
        assert reply.ok, reply
        assert made
        wait_until(lambda: not any(thread.is_alive() for thread in made))


def test_a_key_exchange_that_fails_in_its_thread_fails_where_it_is_waited_for() -> None:
    def fail(_kind: int, _message: paramiko.Message) -> None:
        raise paramiko.SSHException("bad point")

    engine = BriefThreads(SimpleNamespace(hash_algo=None, parse_next=fail))
    with pytest.raises(paramiko.SSHException, match="bad point"):
        engine.parse_next(31, paramiko.Message())


def test_the_systems_ssh_keeps_to_the_persons_key_exchange(
    make_sshd: Callable[..., Sshd], ssh_config: Path
) -> None:
    gate = make_sshd("LogLevel DEBUG1")
    ssh_config.write_text("Host *\n  KexAlgorithms ecdh-sha2-nistp384\n")
    node = gate.node("n", via="openssh", jump=f"{USER}@127.0.0.1:{gate.port}")
    reply = hello(node)
    assert reply.ok, reply
    chosen = [line for line in gate.log.splitlines() if "kex: algorithm: " in line]
    assert len(chosen) == 2
    assert all("algorithm: ecdh-sha2-nistp384" in line for line in chosen)
