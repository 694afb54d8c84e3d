"""What a dead supervisor leaves to be said: its own end if it had one, else that it died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.supervisor.ending import Ending
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.supervisor import Finisher

REASON = "the supervisor was killed by signal 9"


class World:
    """A finisher without processes and peers: what it does is noted."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.everywhere: list[Cause] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ended: list[dict[str, Any]] = []
        self.taken: list[object] = []
        made: Any = Finisher.__new__(Finisher)
        made._ending = SimpleNamespace(takes_over=False, stop_file="", resume=self.ended.append)
        made._ranks = SimpleNamespace(stopping=False, restore=self.taken.extend)
        made._record = SimpleNamespace(
            event=lambda kind, **details: self.events.append((kind, details))
        )
        made._peers = SimpleNamespace(send_ending=self.told.append)
        made._job = {"node": "a", "stop": {"grace": 9.0, "signal": "USR1", "file": "STOP"}}
        made.began = 50.0
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
    ending = world.finisher._ending
    assert (world.finisher.began, ending.stop_file, ending.takes_over) == (5.0, "S", True)


@pytest.mark.parametrize(("state", "by"), [("stopped", "stop"), ("failed", "rank")])
def test_an_end_that_had_begun_stays_and_is_told_again(state: str, by: str) -> None:
    """The others may not have heard it."""
    world = World()
    world.finish(end_of(state, by))
    assert world.everywhere == []
    (told,) = world.told
    assert (told["by"], told["reason"], told["node"], told["exit_code"]) == (by, "why", "a", 3)
    assert told["grace"] is None, "the others' ranks are asked as their own job says"
    (end,) = world.ended
    assert (end["state"], end["by"], end["reason"]) == (state, by, f"why; {REASON}")


def test_a_good_end_is_nobodys_failure() -> None:
    world = World()
    world.finish(end_of("finished", "rank"))
    assert (world.everywhere, world.told) == ([], [])
    (end,) = world.ended
    assert end["state"] == "finished"


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
    made: Any = Ending.__new__(Ending)
    made.takes_over, made.account = True, end_of(state, "rank")
    made._peers = SimpleNamespace(acknowledged=settled, all_done=all_over)
    assert made._others_know(late=late) is known
