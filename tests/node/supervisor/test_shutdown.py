"""A shutdown, with a clock of its own: the request, TERM, KILL, and giving up at last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import (
    KILL_TIMEOUT,
    TERM_TO_KILL,
    Process,
    send_all,
    signal_number,
)
from clusterctl.node.supervisor import shutdown
from clusterctl.node.supervisor.shutdown import Cause, Phases, Shutdown

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class World:
    """Processes that die of what they are sent, and time that passes when nobody looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, deadly: tuple[int, ...]) -> None:
        self.now = 1000.0
        self.deadly = deadly
        self.sent: list[tuple[float, int]] = []
        self.left: list[Any] = ["process"]
        self.blind_until = 0.0
        self.over: list[tuple[float, list[Any]]] = []
        self._due: list[Any] = []
        monkeypatch.setattr(shutdown, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(shutdown, "send_all", lambda _left, number: self._send(number))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = SimpleNamespace(due=self.now + seconds, callback=callback)
        timer.cancel = lambda: self._due.remove(timer) if timer in self._due else None
        self._due.append(timer)
        return timer

    def find(self) -> list[Any]:
        if self.now - 1000 < self.blind_until:
            raise OSError(24, "Too many open files")
        return self.left

    def end(self, phases: Phases) -> Shutdown:
        return Shutdown(
            self,  # type: ignore[arg-type]
            self.find,
            phases,
            lambda left: self.over.append((round(self.now - 1000, 1), left)),
        )

    def live(self, seconds: float = 100.0) -> None:
        until = self.now + seconds
        while self._due and not self.over:
            timer = min(self._due, key=lambda each: each.due)
            if timer.due > until:
                break
            self._due.remove(timer)
            self.now = timer.due
            timer.callback()

    def _send(self, number: int) -> None:
        self.sent.append((round(self.now - 1000, 1), number))
        if number in self.deadly:
            self.left = []


def cause(by: str) -> Cause:
    return Cause(by=by, reason="", node="a", grace=3.0)


def test_after_the_grace_of_a_stop_comes_term_and_only_then_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, deadly=(KILL,))
    world.end(cause("stop").phases(60.0))
    world.live()
    assert world.sent == [(3.0, TERM), (3.0 + TERM_TO_KILL, KILL)]
    assert [left for _, left in world.over] == [[]]


def test_what_ends_at_term_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, deadly=(TERM,))
    world.end(cause("stop").phases(60.0))
    world.live()
    assert world.sent == [(3.0, TERM)]
    assert world.over[0][0] < 3.0 + TERM_TO_KILL


def test_after_a_failure_the_grace_is_all_that_the_others_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, deadly=(KILL,))
    world.end(cause("rank").phases(3.0))
    world.live()
    assert world.sent == [(3.0, KILL)]


def test_a_second_order_hastens_and_never_slows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, deadly=(KILL,))
    way = world.end(Phases(term=10, kill=12))
    world.live(seconds=1)
    way.hasten(Phases(term=60, kill=62))
    way.hasten(Phases(term=0, kill=2))
    world.live()
    assert [number for _, number in world.sent] == [TERM, KILL]
    assert world.sent[-1][0] < 4


def test_what_kill_does_not_end_is_handed_over_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, deadly=())
    world.end(Phases(term=0, kill=0))
    world.live()
    ((at, left),) = world.over
    assert left == ["process"]
    assert KILL_TIMEOUT <= at < KILL_TIMEOUT + 0.2
    assert {number for _, number in world.sent} == {KILL}


def test_while_nobody_can_look_nothing_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, deadly=(KILL,))
    world.blind_until = 2.0
    world.left = []
    world.end(Phases(term=0, kill=0))
    world.live()
    assert world.over == [(2.0, [])]

    world = World(monkeypatch, deadly=(KILL,))
    world.blind_until = 1000.0
    world.end(Phases(term=0, kill=0))
    with pytest.raises(OSError, match="Too many"):
        world.live()
    assert KILL_TIMEOUT <= world.now - 1000 < KILL_TIMEOUT + 0.2


def test_a_stopped_process_is_woken_to_hear_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(processes, "send", lambda mark, number: sent.append((mark[0], number)))
    runs = Process(5, parent=1, group=5, start=0, state="S", threads=1, exit_status=0)
    stopped = Process(6, parent=1, group=5, start=0, state="T", threads=1, exit_status=0)
    send_all([runs, stopped], TERM)
    send_all([stopped], KILL)
    assert sent == [(5, TERM), (6, TERM), (6, signal.SIGCONT), (6, KILL)]


@pytest.mark.parametrize(
    ("by", "state"), [("stop", "stopped"), ("lost", "lost"), ("rank", "failed"), ("x", "failed")]
)
def test_the_state_that_a_cause_leaves(by: str, state: str) -> None:
    assert Cause.read({"by": by, "reason": "", "node": "a", "odd": 1}).state == state


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", "term"])
def test_signals_as_people_write_them(name: str) -> None:
    assert signal_number(name) == TERM


def process(pid: int, parent: int) -> Process:
    return Process(pid, parent, pid, 1, "S", 1, 0)


@pytest.mark.parametrize("alive", [True, False], ids=["client alive", "client gone"])
def test_what_removes_containers_is_started_once_awaited_and_not_killed(
    monkeypatch: pytest.MonkeyPatch, *, alive: bool
) -> None:
    world = World(monkeypatch, deadly=())
    client, remover, tool = process(10, 1), process(20, 1), process(21, 20)
    world.left = [client] if alive else []
    killed: list[list[int]] = []
    monkeypatch.setattr(
        shutdown, "send_all", lambda left, _number: killed.append([each.pid for each in left])
    )
    started: list[int] = []

    def remove() -> int:
        started.append(remover.pid)
        world.left = [*world.left, remover, tool]
        return remover.pid

    Shutdown(
        world,  # type: ignore[arg-type]
        world.find,
        Phases(term=0.0, kill=1.0),
        lambda left: world.over.append((world.now, left)),
        remove,
    )
    world.live(3.0)
    assert started == [remover.pid]
    assert not world.over
    assert {pid for pids in killed for pid in pids} == ({client.pid} if alive else set())
    world.left = []
    world.live()
    assert [left for _, left in world.over] == [[]]
    assert started == [remover.pid]
