"""Strangers: however many connect and stay silent, a run lives on and its own are heard."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.node import listener, lock, processes
from clusterctl.node.listener import Listener, Strangers
from clusterctl.node.reactor import Reactor

from .conftest import Run, wait_until

MakeRun = Callable[..., Run]

SLEEP = "import time; print('here'); time.sleep(300)"

CONNECT = """
import socket, sys, time
held = []
while len(held) < int(sys.argv[2]):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(30)
    try:
        one.connect("\\0" + sys.argv[1])
    except BlockingIOError:
        time.sleep(0.01)
        continue
    held.append(one)
print("connected", flush=True)
sys.stdin.read()
"""


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process open as many files as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Let this process open so many more files and none beyond."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_a_run_survives_more_silent_connections_than_it_may_open_files(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2)
    up = run.start_node(0)
    supervisor = run.pid_of_supervisor()
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1024, 1024))
    address = ("127.0.0.1", up["link_port"])
    silent = [socket.create_connection(address, timeout=30) for _ in range(1100)]
    time.sleep(2.5)  # the supervisor looks for the run's processes every 2 s
    assert descriptors(supervisor) < 100
    run.link_port = up["link_port"]
    assert "error" not in run.start_node(1)
    wait_until(lambda: "peer-joined" in [event["kind"] for event in run.events()])
    assert run.status()["state"] == "running"
    for connection in silent:
        connection.close()
    assert run.stop(0, grace=0)["gone"]
    assert run.ended(1)["state"] == "stopped"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_connections_to_the_lock_do_not_end_a_run(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    supervisor = run.pid_of_supervisor()
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (256, 256))
    other = subprocess.Popen(
        ["/usr/bin/env", "python3", "-c", CONNECT, run.plan.master.lock, "400"],
        user=65534,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"connected\n"
        assert descriptors(supervisor) < 100
        time.sleep(2.5)
        assert (lock.ask(run.plan.master.lock, {"ask": "state"}) or {})["account"]["ranks"]
        other.kill()
    assert run.status()["state"] == "running"


def test_a_run_survives_a_time_without_any_descriptor(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    supervisor = run.pid_of_supervisor()
    soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, hard))
    time.sleep(4.5)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
    assert run.status()["state"] == "running"
    assert run.stop(grace=0)["gone"]
    assert run.ended()["state"] == "stopped"


def test_nobody_is_taken_for_dead_when_nobody_can_look() -> None:
    with files_left(0), pytest.raises(OSError, match="Too many open files"):
        processes.read(os.getpid())
    with files_left(0), pytest.raises(OSError, match="Too many open files"):
        processes.everything()


def test_a_shortage_of_descriptors_does_not_make_it_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SHORTAGE_SECONDS", 0.3)
    reactor, taken = Reactor(), list[socket.socket]()
    listening = socket.create_server(("127.0.0.1", 0))
    made = Listener(reactor, listening, taken.append)
    client = socket.create_connection(listening.getsockname())
    turns = 0
    with files_left(0):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            reactor.after(0.1, lambda: None)
            reactor.turn()
            turns += 1
    assert turns < 30
    while not taken:
        reactor.turn()
    for connection in (*taken, client):
        connection.close()
    made.close()
    made.close()


def test_the_newest_stranger_has_the_oldest_ones_place() -> None:
    reactor, closed = Reactor(), list[int]()
    strangers = Strangers(reactor, most=2, seconds=0.1)
    closing = [lambda n=n: closed.append(n) for n in range(4)]
    for close in closing[:3]:
        strangers.add(close)
    assert closed == [0]
    strangers.remove(closing[1])
    strangers.add(closing[3])
    assert closed == [0]
    while len(closed) < 3:
        reactor.turn()
    assert closed == [0, 2, 3]


def test_a_connection_that_cannot_be_served_ends_alone(capfd: pytest.CaptureFixture[str]) -> None:
    reactor = Reactor()
    listening = socket.create_server(("127.0.0.1", 0))

    def fail(_connection: socket.socket) -> None:
        raise ValueError("not this one")

    made = Listener(reactor, listening, fail)
    with socket.create_connection(listening.getsockname(), timeout=10) as client:
        reactor.turn()
        assert client.recv(1) == b""
    made.close()
    assert "not this one" in capfd.readouterr().err


def test_soft_limits_become_the_hard_ones_and_the_ranks_have_them(make_run: MakeRun) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = (
        "import resource as r; print(*r.getrlimit(r.RLIMIT_NOFILE), *r.getrlimit(r.RLIMIT_STACK))"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        run = make_run(text).start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run.ended()["state"] == "finished"
    files, most, *stack = map(int, run.log(0).split())
    assert files == min(most, 1 << 20) if most >= 0 else 1 << 20
    assert tuple(stack) == resource.getrlimit(resource.RLIMIT_STACK)
    assert Path(run.paths().launcher_log).read_text() == ""
