"""Faults of a whole host: what SSH and the network see of them, and heal."""

from __future__ import annotations

import sys
import time

import pytest

from clusterctl.sandbox import processes
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox
from tests.waiting import wait_until

BOTH: list[BackendName] = ["netns", "loopback"]


def ssh(box: Sandbox, node: str, command: str, *, patience: int = 20) -> str:
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={patience}"]
    done = box.run(["ssh", *options, node, command])
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("backend", BOTH)
def test_a_killed_sshd_refuses_and_leaves_the_rest_alone(
    make_sandbox: MakeSandbox, backend: BackendName
) -> None:
    box = make_sandbox(nodes=1, backend=backend)
    pid = ssh(box, "node1", "sleep 1000 >/dev/null 2>&1 & echo $!")
    box.fault("node1", "sshd-killed")
    assert "refused" in ssh(box, "node1", "true")
    box.heal()
    assert ssh(box, "node1", f"kill -0 {pid} && echo alive") == "alive"


@pytest.mark.parametrize("backend", BOTH)
def test_a_frozen_host_still_accepts_but_does_not_speak(
    make_sandbox: MakeSandbox, backend: BackendName
) -> None:
    box = make_sandbox(nodes=1, backend=backend)
    box.fault("node1", "frozen")
    assert "timed out" in ssh(box, "node1", "true", patience=1).lower()
    box.heal()
    assert ssh(box, "node1", "echo thawed") == "thawed"


def test_a_killed_node_is_silent_and_comes_back_with_its_disk(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    boot = ssh(box, "node2", "touch /root/kept; cat /proc/sys/kernel/random/boot_id")
    box.fault("node2", "killed")
    said = ssh(box, "node2", "true", patience=1)
    assert "timed out" in said or "No route" in said
    box.heal()
    asked = (
        f"cat /proc/sys/kernel/random/boot_id; {sys.executable} -V; ls -d /root/kept /shared/code"
    )
    again = ssh(box, "node2", asked)
    assert "/shared/code" in again
    assert "Python 3" in again
    assert "/root/kept" in again
    assert boot not in again


def test_a_killed_loopback_host_comes_back_on_its_port(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2, backend="loopback")
    pid = ssh(box, "node1", "sleep 1000 >/dev/null 2>&1 & echo $!")
    box.fault("node1", "killed")
    assert "refused" in ssh(box, "node1", "true")
    assert not processes.alive(int(pid))
    box.heal()
    assert ssh(box, "node1", "echo back") == "back"


def test_power_fails_without_a_farewell(make_sandbox: MakeSandbox) -> None:
    """A peer's open connection hears nothing: no FIN, no reset."""
    box = make_sandbox(nodes=2)
    listener = "import socket,time; s=socket.create_server(('',7)); c,_=s.accept(); time.sleep(999)"
    box.on("node2", ["sh", "-c", f'python3 -c "{listener}" >/dev/null 2>&1 &'])
    peer = (
        "import socket,time\n"
        "for _ in range(999):\n"
        " try: s=socket.create_connection(('node2',7)); break\n"
        " except OSError: time.sleep(.02)\n"
        "print('up',flush=True); s.settimeout(4)\n"
        "try: print(s.recv(1))\n"
        "except TimeoutError: print('silence')\n"
    )
    box.on("node1", ["sh", "-c", f'python3 -c "{peer}" >/tmp/said 2>&1 &'])
    said = box.folder("node1") / "tmp" / "said"
    wait_until(lambda: said.exists() and "up" in said.read_text())
    box.fault("node2", "killed")
    wait_until(lambda: said.read_text().count("\n") == 2)
    assert said.read_text() == "up\nsilence\n"


def test_a_slow_host_gets_its_share_only(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1)
    spin = "import time; t=time.monotonic()+.6\nwhile time.monotonic()<t: pass\n"
    spin += "print(time.process_time())"
    box.fault("node1", "slow", "20")
    assert float(ssh(box, "node1", f"python3 -c '{spin}'")) < 0.4
    box.heal()


@pytest.mark.parametrize("backend", BOTH)
def test_a_wrong_clock_is_wrong_over_ssh(make_sandbox: MakeSandbox, backend: BackendName) -> None:
    box = make_sandbox(nodes=1, backend=backend)
    box.fault("node1", "wrong-clock", "-3600")
    assert float(ssh(box, "node1", "date +%s.%N")) == pytest.approx(time.time() - 3600, abs=5)
    box.heal()
    assert float(ssh(box, "node1", "date +%s.%N")) == pytest.approx(time.time(), abs=5)
