"""Load is not an outage: hosts behind a busy core all answer, and a dead one is named in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport import concurrency_limit
from clusterctl.transport.concurrency_limit import (
    FIRST_WINDOW,
    LEAST_WINDOW,
    LOGINS_AT_ONCE,
    ConcurrencyLimit,
    Turn,
)
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.pool import Pool
from tests.failed_reply import error_of
from tests.sshd_servers import HELLO, USER, Sshd, cluster_of
from tests.transport.busy_core import BusyCore, busy_core
from tests.waiting import BUSY

HOSTS = 64
COST = 0.1
"""Seconds of the core for a login: all at once take 6.4 s."""
LIMIT = 3.0
"""Seconds that a host has for its part."""


@pytest.fixture
def core(make_sshd: Callable[..., Sshd], own_state: Path) -> Iterator[tuple[BusyCore, list[Node]]]:
    """A busy core with many hosts behind it, each with an address of its own."""
    server = make_sshd("MaxStartups 1000", known=False)
    with busy_core(server.port, seconds=COST) as busy:
        known = own_state / "clusterctl" / "t" / "known_hosts"
        known.parent.mkdir(parents=True)
        known.write_text(f"[127.0.1.*]:{busy.port} {server.public_key}\n")
        ssh = Ssh(port=busy.port, user=USER, identity=str(server.identity))
        names = [f"127.0.1.{number + 1}" for number in range(HOSTS)]
        yield busy, [Node(host=name, name=name, ssh=ssh) for name in names]


def test_every_host_behind_a_busy_core_answers(core: tuple[BusyCore, list[Node]]) -> None:
    busy, nodes = core
    with Pool(cluster_of(*nodes), timeouts=Timeouts(handshake=LIMIT)) as pool:
        replies = list(pool.open())
    assert [reply for reply in replies if not reply.ok] == []
    assert busy.most < HOSTS
    # Who waited for a turn was not slow.
    assert max(reply.seconds for reply in replies) < HOSTS * COST


def test_a_dead_host_among_busy_ones_is_named_after_one_more_try(
    core: tuple[BusyCore, list[Node]],
) -> None:
    busy, nodes = core
    busy.dead.add(nodes[3].host)
    with Pool(cluster_of(*nodes), timeouts=Timeouts(handshake=LIMIT)) as pool:
        replies = list(pool.open())
    (reply,) = [reply for reply in replies if not reply.ok]
    assert (reply.node, reply.state) == (nodes[3].name, "timeout")
    assert "silent" in error_of(reply).message
    assert busy.refused in (1, 2), "it is tried once more at most, for others were late too"


@pytest.mark.parametrize("count", [2, 8])
def test_a_dead_host_of_a_few_costs_its_time_once(
    core: tuple[BusyCore, list[Node]], count: int
) -> None:
    busy, nodes = core
    few = nodes[:count]
    busy.dead.add(few[0].host)
    with Pool(cluster_of(*few), timeouts=Timeouts(handshake=LIMIT)) as pool:
        began = time.monotonic()
        states = {reply.node: reply.state for reply in pool.open()}
        seconds = time.monotonic() - began
    assert states.pop(few[0].name) == "timeout"
    assert set(states.values()) == {"ok"}
    assert LIMIT <= seconds < 2 * LIMIT


def test_agents_start_in_turn_too(core: tuple[BusyCore, list[Node]]) -> None:
    _, nodes = core
    with Pool(cluster_of(*nodes), timeouts=Timeouts(handshake=LIMIT), fanout=4) as pool:
        running = most = 0
        lock = threading.Lock()
        turn = pool._connector._limit.turn

        def counted(*args: object, **more: object) -> object:
            nonlocal running, most
            found = turn(*args, **more)  # type: ignore[arg-type]

            class Counted:
                def __enter__(self) -> object:
                    nonlocal running, most
                    entered = found.__enter__()
                    with lock:
                        running += 1
                        most = max(most, running)
                    return entered

                def __exit__(self, *error: object) -> object:
                    nonlocal running
                    with lock:
                        running -= 1
                    return found.__exit__(*error)  # type: ignore[arg-type]

            return Counted()

        pool._connector._limit.turn = counted  # type: ignore[assignment,method-assign]
        replies = list(pool.call({node.name: HELLO for node in nodes[:12]}))
    assert {reply.state for reply in replies} == {"ok"}
    assert 1 < most <= 4


class Clock:
    """The limit's own, which a test can put forward."""

    ahead = 0.0
    process_time = staticmethod(lambda: 0.0)  # other tests of this process do not count
    sleep = staticmethod(time.sleep)

    @classmethod
    def monotonic(cls) -> float:
        return time.monotonic() + cls.ahead


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(concurrency_limit, "time", Clock)
    yield
    while Server.all:
        Server.all.pop().close()


class Server:
    """Logins at a server that answers only when the test says."""

    all: ClassVar[list[Server]] = []
    """Those of the test."""

    def __init__(self, limit: ConcurrencyLimit, lane: str = "") -> None:
        self.all.append(self)
        self.threads: list[threading.Thread] = []
        self.limit, self.lane = limit, lane
        self.at: list[tuple[str, Turn, threading.Event]] = []
        self.ended: dict[str, NodeError | None] = {}
        self._lock = threading.Lock()

    def ask(self, *names: str, server: str | None = None, accepted: bool = True) -> None:
        def log_in(name: str) -> None:
            def work(turn: Turn) -> None:
                turn.accepted = accepted
                answer = threading.Event()
                with self._lock:
                    self.at.append((name, turn, answer))
                assert answer.wait(BUSY)
                if name in self.late:
                    raise NodeError("timeout", "banner", name)

            try:
                self.limit.login(self.lane, server or name, work)
            except NodeError as failure:
                self.ended[name] = failure
            else:
                self.ended[name] = None

        for name in names:
            thread = threading.Thread(target=log_in, args=(name,), daemon=True)
            self.threads.append(thread)
            thread.start()
            time.sleep(0.001)

    late: tuple[str, ...] = ()

    def close(self) -> None:
        """Let no thread be left to fail in another test."""
        self.limit.close()
        while any(thread.is_alive() for thread in self.threads):
            for _, _, answer in [*self.at]:
                answer.set()
            time.sleep(0.01)

    def settled(self) -> list[str]:
        """Return who is logging in once that no longer changes."""
        before = -1
        while before != len(self.at):
            before = len(self.at)
            time.sleep(0.2)
        return [name for name, _, answer in self.at if not answer.is_set()]

    def answer(self, *names: str, after: float = 0.0) -> None:
        Clock.ahead += after
        for name, _, answer in self.at:
            if name in names and not answer.is_set():
                answer.set()


def names_of(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def test_the_window_grows_with_quick_answers_and_halves_with_late_ones() -> None:
    server = Server(ConcurrencyLimit(Timeouts()))
    names = names_of(200)
    server.ask(*names)
    first = server.settled()
    assert first == names[: int(FIRST_WINDOW)]
    server.answer(*first)
    second = server.settled()
    assert len(second) == 2 * len(first)
    server.answer(*second, after=10)
    assert len(server.settled()) == len(first)
    for _ in range(4):
        server.answer(*server.settled(), after=10)
    assert len(server.settled()) == LEAST_WINDOW


def test_who_was_late_among_late_ones_is_tried_again_when_there_is_room() -> None:
    server = Server(ConcurrencyLimit(Timeouts()))
    server.late = ("n0",)
    names = names_of(int(FIRST_WINDOW))
    server.ask(*names)
    assert len(server.settled()) == len(names)
    server.answer(*names[1:5], after=5)
    server.settled()
    server.answer("n0")
    server.settled()
    server.late = ()
    server.answer(*names[5:])
    assert server.settled() == ["n0"]  # again
    assert len([name for name, _, _ in server.at if name == "n0"]) == 2
    server.answer("n0")
    server.settled()
    assert server.ended["n0"] is None


def test_a_host_that_has_not_accepted_leaves_its_place() -> None:
    server = Server(ConcurrencyLimit(Timeouts()))
    dead, alive = names_of(40), ["alive"]
    server.ask(*dead, accepted=False)
    server.ask(*alive)
    until = time.monotonic() + BUSY
    while "alive" not in server.settled():
        assert time.monotonic() < until


def test_one_server_gets_few_logins_at_once_and_others_do_not_wait_for_it() -> None:
    server = Server(ConcurrencyLimit(Timeouts()))
    server.ask(*names_of(30), server="gateway")
    server.ask("other")
    assert len(server.settled()) == LOGINS_AT_ONCE + 1
    assert "other" in server.settled()


def test_a_fanout_is_the_most_at_once_over_all_ways() -> None:
    limit = ConcurrencyLimit(Timeouts(), 3)
    direct, behind = Server(limit), Server(limit, lane="bastion")
    direct.ask(*names_of(5))
    behind.ask(*names_of(5))
    assert len(direct.settled()) + len(behind.settled()) == 3


def test_who_waits_is_let_go_when_the_command_ends() -> None:
    limit = ConcurrencyLimit(Timeouts(), 1)
    server = Server(limit)
    server.ask("n0", "n1")
    assert server.settled() == ["n0"]
    limit.close()
    server.settled()
    assert (server.ended["n1"] or NodeError("ok", "")).state == "lost"


def test_nobody_waits_for_a_turn_after_the_end() -> None:
    limit = ConcurrencyLimit(Timeouts(), 1)
    refused: list[NodeError] = []

    def ask() -> None:
        try:
            with limit.turn("", "call"):
                pass
        except NodeError as failure:
            refused.append(failure)

    with limit.turn("", "call"):
        limit.close()
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(BUSY)
    assert [failure.state for failure in refused] == ["lost"]
    assert limit._running == 0


def test_a_turn_that_began_just_before_the_end_is_given_back() -> None:
    limit = ConcurrencyLimit(Timeouts(), 1)
    begin = limit._begin

    def begin_and_end() -> None:
        begin()
        limit._closed = True

    limit._begin = begin_and_end  # type: ignore[method-assign]
    with pytest.raises(NodeError, match="are closed"), limit.turn("", "call"):
        pytest.fail("it went on")
    assert limit._running == 0


def test_dead_hosts_at_a_server_leave_their_places_there() -> None:
    server = Server(ConcurrencyLimit(Timeouts()))
    server.ask(*names_of(LOGINS_AT_ONCE), server="gateway", accepted=False)
    server.ask("alive", server="gateway")
    until = time.monotonic() + BUSY
    while "alive" not in server.settled():
        assert time.monotonic() < until
