"""Strangers: however many connect and stay silent, a run lives on and its own are heard."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from clusterctl.node import listener, run_lock
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.listener import Listener, ListenerThread, UnauthenticatedPeers
from clusterctl.node.peer_link import master, tls_channel
from clusterctl.node.probe import listen
from clusterctl.node.push import chain
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor import control_socket
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

OTHER = 65534
"""Another user's number."""

SLEEP = "import time; print('here'); time.sleep(300)"

COUNT_UP = """
import os, pathlib, sys, time
number = 0
while os.environ["RANK"] != "0" or not pathlib.Path("go").exists():
    print(number, flush=True)
    number += 1
    time.sleep(0.02)
sys.exit(7)
"""

CONNECT = """
import os, resource, socket, sys
uid, port, lock, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setuid(uid)
held = []
for place in count * [("127.0.0.1", port), chr(0) + lock]:
    one = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    one.connect(place)
    held.append(one)
print("connected", flush=True)
sys.stdin.read()
"""
"""Connects to the link and to the lock as some user, and says nothing there."""


def kinds(run: Run, n: int) -> list[str]:
    """Return the kinds of a node's events so far."""
    text = Path(run.paths(n).events).read_text()
    return [json.loads(line)["kind"] for line in text.splitlines()]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def lines(run: Run, rank: int) -> int:
    return run.log(rank, rank).count(b"\n")


@contextmanager
def silent_crowd(port: int, name: str, *, uids: Sequence[int], count: int) -> Iterator[None]:
    """Hold so many connections of each of these users to a link and to a lock."""
    with ExitStack() as ending:
        crowd = []
        for uid in uids:
            argv = ["/usr/bin/env", "python3", "-c", CONNECT, *map(str, (uid, port, name, count))]
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, cwd="/", env={"PATH": "/usr/bin:/bin"}
            )
            ending.enter_context(process)
            ending.callback(process.kill)
            crowd.append(process)
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == b"connected\n"
        yield


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


@pytest.mark.parametrize("ends", ["by itself", "by a stop"])
def test_a_run_does_not_notice_4000_silent_connections(make_run: MakeRun, ends: str) -> None:
    run = make_run(COUNT_UP, nodes=2)
    run.link_port = run.start_node(0)["link_port"]
    supervisor = run.pid_of_supervisor()
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1024, 1024))
    memory = psutil.Process(supervisor).memory_info().rss
    uids = [os.getuid(), OTHER if os.getuid() == 0 else os.getuid()]
    with silent_crowd(run.link_port, run.plan.master.lock, uids=uids, count=1000):
        assert "error" not in run.start_node(1)
        wait_until(lambda: "clock" in kinds(run, 1))  # it was let in among all these
        run.wait_for_log(1, b"0\n", n=1)
        before = kinds(run, 0), kinds(run, 1)
        used, began = cpu_seconds(supervisor), time.monotonic()
        first = [lines(run, rank) for rank in (0, 1)]
        wait_until(lambda: all(lines(run, rank) > first[rank] + 50 for rank in (0, 1)))
        assert cpu_seconds(supervisor) - used < (time.monotonic() - began) / 2
        assert descriptors(supervisor) < 300
        assert psutil.Process(supervisor).memory_info().rss < memory + (32 << 20)
        assert (kinds(run, 0), kinds(run, 1)) == before
        assert [run.status(n)["state"] for n in (0, 1)] == ["running", "running"]
        if ends == "by a stop":
            assert run.stop(0, grace=0)["gone"]
        else:
            (run.workdir / "go").touch()
        end = run.ended(0)["end"]
        ended = ("stopped", None) if ends == "by a stop" else ("failed", 7)
        assert (end["state"], end["exit_code"]) == ended
        assert run.ended(1)["state"] in {"stopped", "failed"}
    for rank in (0, 1):
        numbers = [int(line) for line in run.log(rank, rank).splitlines()]
        assert numbers == list(range(len(numbers)))
    assert not {"peer-lost", "guard-died"} & {*kinds(run, 0), *kinds(run, 1)}


FLOOD = """
import os, socket, ssl, sys
how, port, lock = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if how == "TLS 1.2":
    context.maximum_version = ssl.TLSVersion.TLSv1_2
held = []
while True:
    one = socket.socket(socket.AF_UNIX if how.startswith("lock") else socket.AF_INET)
    try:
        one.connect(chr(0) + lock if how.startswith("lock") else ("127.0.0.1", port))
        if how == "garbage":
            one.sendall(os.urandom(1 << 20))
        elif how == "half a handshake":
            out = ssl.MemoryBIO()
            tls = context.wrap_bio(ssl.MemoryBIO(), out)
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                one.sendall(out.read())
            held = [*held[-500:], one]
            continue
        elif how in ("long lines", "TLS 1.2"):
            one = context.wrap_socket(one)
            one.sendall(b"x" * (1 << 20))
        elif how == "wrong token":
            one = context.wrap_socket(one)
            one.sendall(b'{"hello": {"node": "x", "token": "guessed"}}' + bytes([10]))
            one.recv(1)
        elif how == "lock: nonsense":
            one.sendall(b"[" * 60000)
        elif how == "lock: who":
            one.sendall(b'{"ask": "who"}')
            one.recv(1000)
    except OSError:
        pass
    one.close()
"""
"""Does one thing to a link or a lock, as often as it can."""

STRANGERS = Path(__file__).parents[2] / "docs" / "explanation" / "strangers.md"


def test_the_page_names_what_a_stranger_may_cost() -> None:
    rows = [line for line in STRANGERS.read_text().splitlines() if line.startswith("| ")]
    link = (
        f"{master.HELLO_SECONDS:.0f} seconds, {tls_channel.UNAUTHENTICATED_BYTES >> 10} KiB in all,"
        f" {tls_channel.UNAUTHENTICATED_LINE >> 10} KiB per line, {master.MAX_UNAUTHENTICATED}"
        " connections beyond the run's workers"
    )
    lock = (
        f"{run_lock.ANSWER_SECONDS:.0f} seconds, one request of {run_lock.LINE_LIMIT >> 10} KiB,"
        f" {control_socket.MAX_UNAUTHENTICATED} connections"
    )
    push = f"{chain.HELLO_SECONDS:.0f} seconds in all, {chain.MAX_UNAUTHENTICATED} connections"
    probe = (
        f"no byte; {listen.HELLO_SECONDS:.0f} seconds, half of the secret,"
        f" {listen.MAX_UNAUTHENTICATED} connections"
    )
    for words, count in ((link, 1), (lock, 1), (push, 2), (probe, 2)):
        assert sum(words in row for row in rows) == count, words


FLOODS = [
    "garbage",
    "half a handshake",
    "long lines",
    "TLS 1.2",
    "wrong token",
    "connect and close",
]
FLOODS += ["lock: nonsense", "lock: who", "lock: connect and close"]


@pytest.mark.soak
@pytest.mark.parametrize("how", FLOODS)
def test_a_run_lives_through_a_flood(make_run: MakeRun, how: str) -> None:
    run = make_run(COUNT_UP, nodes=2).start()
    wait_until(lambda: "clock" in kinds(run, 1))
    run.wait_for_log(0, b"0\n")
    supervisor, name = run.pid_of_supervisor(), run.plan.master.lock
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1024, 1024))
    memory = psutil.Process(supervisor).memory_info().rss
    before = kinds(run, 0), kinds(run, 1)
    argv = ["/usr/bin/env", "python3", "-c", FLOOD, how, str(run.link_port), name]
    with subprocess.Popen(argv, cwd="/") as flood:
        until = time.monotonic() + 20
        answers = 0
        while time.monotonic() < until:
            answers += "account" in (run_lock.query(name, {"ask": "state"}) or {})
            assert descriptors(supervisor) < 300
            assert psutil.Process(supervisor).memory_info().rss < memory + (64 << 20)
            time.sleep(0.1)
        assert flood.poll() is None
        assert answers > 5
        assert (kinds(run, 0), kinds(run, 1)) == before
        assert run.stop(0, grace=0)["gone"]
        flood.kill()
    assert run.ended(1)["state"] == "stopped"
    assert Path(run.paths(0).launcher_log).read_text() == ""


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
        processes.process_table()


def test_a_shortage_of_descriptors_does_not_make_it_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SHORTAGE_SECONDS", 0.3)
    loop, taken = EventLoop(), list[socket.socket]()
    listening = socket.create_server(("127.0.0.1", 0))
    made = Listener(loop, listening, lambda connection, _address: taken.append(connection))
    client = socket.create_connection(listening.getsockname())
    turns = 0
    with files_left(0):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            loop.call_later(0.1, lambda: None)
            loop.run_once()
            turns += 1
    assert turns < 30
    while not taken:
        loop.run_once()
    for connection in (*taken, client):
        connection.close()
    made.close()
    made.close()


def test_the_newest_stranger_has_the_oldest_ones_place() -> None:
    loop, closed = EventLoop(), list[int]()
    strangers = UnauthenticatedPeers(loop, most=2, seconds=0.1)
    closing = [lambda n=n: closed.append(n) for n in range(4)]
    for close in closing[:3]:
        strangers.add(close, "10.0.0.1")
    assert closed == [0]
    strangers.remove(closing[1])
    strangers.add(closing[3], "10.0.0.1")
    assert closed == [0]
    while len(closed) < 3:
        loop.run_once()
    assert closed == [0, 2, 3]


def test_one_that_connects_all_the_time_takes_no_place_from_others() -> None:
    strangers, closed = UnauthenticatedPeers(EventLoop(), most=3, seconds=60), list[str]()
    closing = [lambda n=n: closed.append(n) for n in ("worker", *map(str, range(6)))]
    strangers.add(closing[0], "10.0.0.2")
    for close in closing[1:]:
        strangers.add(close, "10.0.0.1")
    assert closed == ["0", "1", "2", "3"]
    strangers.remove(closing[0])


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ("2001:db8::1", [f"2001:db8:0:1::{n}" for n in range(1, 7)]),
        ("fe80::1%eth0", [f"2001:db8:0:1:{n}::1" for n in range(6)]),
        ("::ffff:10.0.0.2", ["::ffff:10.0.0.1"] * 6),
        ("10.0.0.2", ["2001:db8::1", "2001:db8::2"] * 3),
    ],
)
def test_one_that_has_many_addresses_of_ipv6_takes_no_place_from_others(
    own: str, others: list[str]
) -> None:
    strangers, closed = UnauthenticatedPeers(EventLoop(), most=3, seconds=60), list[str]()
    strangers.add(lambda: closed.append("own"), own)
    for other in others:
        strangers.add(lambda name=other: closed.append(name), other)  # type: ignore[misc]
    assert closed == others[:4]


def test_one_address_of_ipv6_takes_no_place_from_others_of_its_network() -> None:
    strangers, closed = UnauthenticatedPeers(EventLoop(), most=3, seconds=60), list[int]()
    flood = "2001:db8::2"
    for n, address in enumerate(["2001:db8:0:1::1", "2001:db8::1", *[flood] * 4]):
        strangers.add(lambda n=n: closed.append(n), address)  # type: ignore[misc]
    assert closed == [2, 3, 4]
    strangers.close()
    assert not strangers._networks
    assert not strangers._sizes


@pytest.mark.parametrize("error", [OSError, ValueError, RecursionError])
def test_whatever_a_stranger_causes_it_is_closed_without_a_word(
    error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> None:
    loop, listening = EventLoop(), socket.create_server(("127.0.0.1", 0))
    strangers = UnauthenticatedPeers(loop, most=3, seconds=60)

    def hear() -> bool:
        raise error

    made = Listener(
        loop, listening, lambda connection, address: strangers.greet(connection, address, hear)
    )
    with socket.create_connection(listening.getsockname(), timeout=10) as client:
        client.sendall(b"x")
        loop.run_once()
        loop.run_once()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert not strangers._waiting
    made.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("error", "logged"), [(OSError, False), (RuntimeError, True)])
def test_one_of_ours_that_cannot_be_kept_ends_alone(
    error: type[Exception], *, logged: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    failures: list[Exception] = [error("no thread")]
    kept = list[socket.socket]()
    listening = socket.create_server(("127.0.0.1", 0))

    def greet(peers: UnauthenticatedPeers, connection: socket.socket, address: str) -> None:
        def keep() -> None:
            if failures:
                raise failures.pop()
            kept.append(connection)

        peers.greet(connection, address, lambda: True, keep)

    thread = ListenerThread(listening, greet, most=3, seconds=60)
    with socket.create_connection(listening.getsockname(), timeout=10) as first:
        first.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            first.recv(1)
    with socket.create_connection(listening.getsockname(), timeout=10) as second:
        second.sendall(b"x")
        wait_until(lambda: bool(kept))
    kept[0].close()
    thread.close()
    assert ("no thread" in capfd.readouterr().err) is logged


def test_a_thread_that_listens_outlives_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = list[socket.socket]()
    listening = socket.create_server(("127.0.0.1", 0))
    turn, failures = EventLoop.run_once, [MemoryError("no memory")]

    def run_once(self: EventLoop) -> None:
        if failures:
            raise failures.pop()
        turn(self)

    monkeypatch.setattr(EventLoop, "run_once", run_once)
    thread = ListenerThread(
        listening, lambda _peers, connection, _: taken.append(connection), most=3, seconds=60
    )
    with socket.create_connection(listening.getsockname(), timeout=10):
        wait_until(lambda: bool(taken))
    taken[0].close()
    thread.close()
    assert "no memory" in capfd.readouterr().err


def test_a_connection_that_cannot_be_served_ends_alone(capfd: pytest.CaptureFixture[str]) -> None:
    loop = EventLoop()
    listening = socket.create_server(("127.0.0.1", 0))

    def fail(_connection: socket.socket, _address: str) -> None:
        raise ValueError("not this one")

    made = Listener(loop, listening, fail)
    with socket.create_connection(listening.getsockname(), timeout=10) as client:
        loop.run_once()
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
