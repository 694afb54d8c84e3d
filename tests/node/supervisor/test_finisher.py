"""What a dead supervisor leaves to be said: its own end if it had one, else that it died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.supervisor.finisher import Finisher
from clusterctl.node.supervisor.shutdown import Cause

REASON = "the supervisor was killed by signal 9"


class World:
    """A finisher without processes and peers: what it does is noted."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.everywhere: list[Cause] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.phases: list[object] = []
        self.taken: list[object] = []
        made: Any = Finisher.__new__(Finisher)
        made._shutdown = self.phases.append
        made._ranks = SimpleNamespace(stopping=False, restore=self.taken.extend)
        made._record = SimpleNamespace(
            event=lambda kind, **details: self.events.append((kind, details))
        )
        made._peers = SimpleNamespace(
            send_ending=self.told.append, all_done=False, acknowledged=False
        )
        made._job = {"node": "a", "stop": {"grace": 9.0, "signal": "USR1", "file": "STOP"}}
        made.began, made._end = 50.0, None
        self.final: list[str] = []
        made._next = SimpleNamespace(give_up=self.final.append)
        made._housekeeping = SimpleNamespace(start_heartbeat=lambda: None)
        made._end_everywhere = self.everywhere.append
        self.finisher: Any = made

    def finish(self, end: dict[str, Any] | None) -> None:
        ranks = [{"rank": 0}]
        saved = {"pid": 7, "began": 5.0, "stop_file": "S", "ranks": ranks, "end": end}
        self.finisher.finish(saved, REASON, 99.0)


def end_of(state: str, by: str) -> dict[str, Any]:
    return {"state": state, "by": by, "reason": "why", "exit_code": 3, "time": 60.0}


def test_a_supervisor_that_died_amid_the_run_ends_it_everywhere() -> None:
    world = World()
    world.finish(None)
    (cause,) = world.everywhere
    assert world.final == ["the supervisor had died"], "it starts no further attempt"
    assert (cause.by, cause.reason, cause.node) == ("supervisor", REASON, "a")
    assert world.events == [("supervisor-died", {"time": 99.0, "message": REASON, "pid": 7})]
    assert world.taken == [{"rank": 0}]
    assert world.finisher._ranks.stopping
    assert (world.finisher.began, world.finisher._stop_file) == (5.0, "S")


@pytest.mark.parametrize(("state", "by"), [("stopped", "stop"), ("failed", "rank")])
def test_an_end_that_had_begun_stays_and_is_told_again(state: str, by: str) -> None:
    """The others may not have heard it."""
    world = World()
    world.finish(end_of(state, by))
    assert world.everywhere == []
    (told,) = world.told
    assert (told["by"], told["reason"], told["node"], told["exit_code"]) == (by, "why", "a", 3)
    assert told["grace"] is None, "the others' ranks are asked as their own job says"
    assert (world.finisher._end["state"], world.finisher._end["by"]) == (state, by)
    assert world.finisher._end["reason"] == f"why; {REASON}"
    assert len(world.phases) == 1


def test_a_good_end_is_nobodys_failure() -> None:
    world = World()
    world.finish(end_of("finished", "rank"))
    assert (world.everywhere, world.told) == ([], [])
    assert world.finisher._end["state"] == "finished"
    assert len(world.phases) == 1


@pytest.mark.parametrize(
    ("state", "late", "settled", "all_over", "known"),
    [
        ("finished", False, False, True, True),
        ("finished", True, False, False, False),
        ("finished", True, True, False, True),
        ("finished", False, True, False, False),
        ("failed", False, True, False, False),
        ("failed", True, False, False, True),
    ],
)
def test_it_stays_until_the_others_know_or_had_their_time(
    state: str,
    late: bool,  # noqa: FBT001
    settled: bool,  # noqa: FBT001
    all_over: bool,  # noqa: FBT001
    known: bool,  # noqa: FBT001
) -> None:
    """Those that ended before do not come again: after a bad end nobody is waited for long."""
    world = World()
    world.finisher._end = end_of(state, "rank")
    world.finisher._peers = SimpleNamespace(acknowledged=settled, all_done=all_over)
    assert world.finisher._others_know(late=late) is known
