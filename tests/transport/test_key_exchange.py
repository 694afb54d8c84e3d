"""The key exchange that is chosen: post-quantum first, and only what this machine can do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import paramiko

from clusterctl.transport.interface import Request
from clusterctl.transport.paramiko_connection import Transport
from clusterctl.transport.pool import Pool
from tests.sshd_servers import USER, Sshd, cluster_of

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


def test_the_systems_ssh_keeps_to_the_persons_key_exchange(
    make_sshd: Callable[..., Sshd], ssh_config: Path
) -> None:
    gate = make_sshd("LogLevel DEBUG1")
    ssh_config.write_text("Host *\n  KexAlgorithms ecdh-sha2-nistp384\n")
    node = gate.node("n", via="openssh", jump=f"{USER}@127.0.0.1:{gate.port}")
    with Pool(cluster_of(node)) as pool:
        (reply,) = pool.call({"n": Request(op="hello", args={})})
    assert reply.ok, reply
    chosen = [line for line in gate.log.splitlines() if "kex: algorithm: " in line]
    assert len(chosen) == 2
    assert all("algorithm: ecdh-sha2-nistp384" in line for line in chosen)
