"""When a node lets the next attempt begin, and what it refuses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.peer_link.peer import ADMITTED, Peer
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.restart_messages import parse_again
from clusterctl.node.restart.judgement import NO_PROGRESS
from clusterctl.node.restart.rules import FRUITLESS
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.run.processes.processes import key_of
from clusterctl.node.supervisor import decide_next
from clusterctl.node.supervisor.master_attempt import MasterAttempt
from clusterctl.node.supervisor.next_attempt import GO, OPEN, OVER, Attempt, NextAttempt
from clusterctl.node.supervisor.shutdown import Cause

AGAIN: dict[str, Any] = {
    "attempt": 2, "checkpoint": None, "step": None, "wait_s": 0.0, "why": "w", "go": False,
    "without": [], "joined": [],
}  # fmt: skip
SEEN = {"workdir": "/w", "checkpoints": [{"name": "c-4", "path": "/w/ckpt/c-4"}]}
OWN: dict[str, Any] = {
    "failures": [], "stuck": False, "blame": "", "step": None, "check": {}, "sight": SEEN,
    "unreached": [],
}  # fmt: skip
RESTART: dict[str, Any] = {"max": 2, "on": {}, "never": {}, "resumed_argv": []}


class Node:
    """A node after a failed attempt, whose peers and files are noted."""

    def __init__(self, rank: int = 0, **changes: Any) -> None:
        self.events: list[str] = []
        self.endings: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.dismissed: list[dict[str, Any]] = []
        job: Any = {
            "node": f"n{rank}", "node_rank": rank, "workdir": "/w", "attempt": 1, "run": "r",
            "master": {"node": "n0"}, "workers": [], "link": {"lost_after": 5.0},
            "hang": {"action": "restart"},
            "restart": RESTART, **changes,
        }  # fmt: skip
        record: Any = SimpleNamespace(event=lambda kind, **_: self.events.append(kind), paths=None)
        guard = key_of(os.getpid())
        peers: Any = SimpleNamespace(
            again=None,
            all_done=True,
            others=Peers(job, job["workers"]).others,
            silences={},
            send_again=self.told.append,
            dismiss=self.dismissed.append,
            send_ending=self.endings.append,
        )
        self.peers = peers
        self.waits: list[str] = []
        loop: Any = SimpleNamespace()
        given = Attempt(loop, job, record, peers, guard, lambda: None, self.waits.append)
        self.master = MasterAttempt(given)
        self.next = NextAttempt(given) if rank else self.master
        self.next._own = OWN

    def tell(self, *names: str, after: dict[str, Any] = OWN) -> None:
        """Let workers end, with what they know."""
        for name in names:
            self.peers.others[name] = self.peers.others[name].arrived(0.0, None).ended(after)

    def join(self, name: str) -> Any:
        """Let a node that was lost join again; return its seat."""
        seat: Any = {"node": name, "address": "a", "procs": 1}
        let_in = self.peers.others[name].lost(time.monotonic()).admitted(0.0)
        self.peers.others[name] = let_in.arrived(0.0, seat)
        return seat

    def poll(self) -> str:
        return self.next.poll(late=False)


def decides(monkeypatch: pytest.MonkeyPatch, action: str, **more: Any) -> None:
    more = {"without": (), **more}
    decision = SimpleNamespace(action=action, why="why", wait_s=0.0, exit_code=None, **more)
    monkeypatch.setattr(decide_next, "decide_next", lambda *_: found_of(decision))


def found_of(decision: Any, **more: Any) -> Any:
    return SimpleNamespace(
        **{"checkpoint": None, "lacks": False, "joined": (), "way_on": "", "end": None, **more},
        decision=decision,
    )


def test_a_worker_goes_when_the_master_says_so_and_not_before() -> None:
    node = Node(1)
    assert node.poll() == OPEN
    node.peers.again = AGAIN
    assert node.poll() == OPEN
    assert node.events == ["again"]
    node.peers.again = {**AGAIN, "go": True}
    assert node.poll() == GO
    assert node.events == ["again"]


def test_before_its_own_first_checkpoint_a_resume_begins_again_from_the_one_it_was_given(
    capfd: pytest.CaptureFixture[str],
) -> None:
    resumed = {"run": "r0", "checkpoint": "out/step10.pt", "step": 10, "command": []}
    starts = []
    for more, own in (({}, {}), ({"resumed": resumed}, {}), ({"resumed": resumed}, {"step": 20})):
        node = Node(1, **more)
        node.next._record.log_times = lambda: None  # type: ignore[method-assign]
        node.peers.again = {**AGAIN, **own, **({"checkpoint": "/w/ckpt/c-4"} if own else {})}
        node.poll()
        shown = node.next.account["again"]
        starts.append((shown["checkpoint"], shown["step"]))
        node.next.announce()
    assert starts == [(None, None), ("out/step10.pt", 10), ("/w/ckpt/c-4", 20)]
    heads = [line.partition(": ")[0] for line in capfd.readouterr().out.splitlines()]
    assert heads == [
        f"attempt 2 of 3, from {where}"
        for where in ("the beginning", "checkpoint step 10", "checkpoint step 20")
    ]


@pytest.mark.parametrize("path", ["/w/ckpt/c-4", "ckpt/c-4"])
def test_a_worker_takes_a_checkpoint_that_it_has_seen(path: str) -> None:
    node = Node(1)
    node.peers.again = {**AGAIN, "checkpoint": path, "go": True}
    assert node.poll() == GO


@pytest.mark.parametrize(
    "change", [{"checkpoint": "/tmp/of-somebody"}, {"checkpoint": "../w/ckpt/c-4"}, {"attempt": 3}]
)
def test_a_worker_refuses_what_a_master_must_not_name(change: dict[str, Any]) -> None:
    node = Node(1)
    node.peers.again = {**AGAIN, "go": True, **change}
    assert node.poll() == OPEN, "until the master knows"
    assert [one["by"] for one in node.endings] == ["stop"], "the others do not wait for it"
    node.peers.again = {**AGAIN, "attempt": 0}
    assert node.poll() == OVER


def test_a_master_begins_no_attempt_that_could_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    decides(monkeypatch, "again")
    node = Node(max_time=60.0, up=uptime() - 61.0)
    node.poll()
    assert node.next.why_not == "why; its time is over before the next attempt"
    lasts = Node(max_time=60.0, up=uptime())
    lasts.poll()
    assert lasts.next.again is not None


def test_a_worker_hears_that_there_is_no_next_attempt() -> None:
    node = Node(1)
    node.peers.again = {**AGAIN, "attempt": 0, "why": "no disk"}
    assert node.poll() == OVER
    assert (node.next.why_not, node.endings) == ("no disk", [])


def test_a_worker_whose_master_has_finished_waits_for_nobody() -> None:
    node = Node(1)
    node.next.master_finished = True
    assert node.poll() == OVER
    assert (node.next.why_not, node.endings) == ("the job has finished on n0", [])


def test_a_long_reason_of_a_master_fits_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    decides(monkeypatch, "again")
    node = Node(workers=["n1"])
    node.tell("n1")
    node.next.give_up("n1: " + "no disk; " * 1000)
    node.poll()
    assert parse_again(node.told[-1])["why"].startswith("n1: no disk")


def test_a_master_waits_for_all_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    decides(monkeypatch, "again")
    node = Node(workers=["n1"])
    node.peers.all_done = False
    assert (node.poll(), node.told) == (OPEN, [])
    node.peers.all_done = True
    node.tell("n1")
    assert node.poll() == OPEN
    assert [one["go"] for one in node.told] == [False]
    node.peers.silences = {"n1": 4.5}
    assert node.poll() == OPEN, "its connection is being made again"
    node.peers.silences = {"n1": 0.5}
    assert node.poll() == GO
    assert [one["go"] for one in node.told] == [False, True]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda node: node.peers.silences.update(n1=6.0), "n1 has been silent for 6 s"),
        (lambda node: node.next.see(Cause("stop", "s", "n0")), "it was stopped"),
        (lambda node: node.next.see(Cause("stop", "no guard", "n1", refuses=True)), "n1: no guard"),
        (lambda node: node.next.see(Cause("supervisor", "s", "n1")), "supervisor on n1 had died"),
    ],
)
def test_until_it_goes_a_stop_or_a_loss_is_final(
    monkeypatch: pytest.MonkeyPatch, spoil: Any, why: str
) -> None:
    decides(monkeypatch, "again")
    node = Node(workers=["n1"])
    node.tell("n1")
    assert node.poll() == OPEN
    assert node.next.account["again"]["attempt"] == 2
    spoil(node)
    node.poll()
    assert why in node.next.why_not
    assert node.told[-1]["attempt"] == 0
    assert node.next.account["again"] is None


def test_a_master_that_lacks_something_does_not_decide() -> None:
    node = Node(workers=["n1"])
    node.poll()
    assert node.next.why_not == "n1 did not say what it has"


def test_a_decision_that_fails_costs_the_next_attempt_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide_next, "decide_next", lambda *_: 1 // 0)
    node = Node()
    node.poll()
    assert "ZeroDivisionError" in node.next.why_not


def test_restarts_that_brought_nothing_have_their_own_exit_code_also_at_the_last(
    tmp_path: Path,
) -> None:
    reset = ["RuntimeError: Connection closed by peer [10.0.0.2]"]
    failure = {"at": 1.0, "rank": 0, "exit_code": 1, "signal": None, "oom": False, "lines": reset}
    restart = {"max": FRUITLESS, "on": {}, "never": {}, "resumed_argv": []}
    node = Node()
    for attempt in range(1, FRUITLESS + 2):
        node = Node(attempt=attempt, restart=restart)
        node.next._record.paths = SimpleNamespace(attempts=str(tmp_path / "attempts"))  # type: ignore[assignment]
        node.next._own = {**OWN, "failures": [failure], "sight": {"workdir": "/w"}}
        node.next.see(Cause("rank", "it failed", "n0", exit_code=1, rank=0))
        node.poll()
        assert (node.next.again is None) == (attempt > FRUITLESS)
    assert node.next.verdict["run_exit_code"] == NO_PROGRESS


def test_a_node_that_keeps_its_rank_from_running_is_to_be_left_out(tmp_path: Path) -> None:
    node = Node(workers=["n1"])
    node.next._record.paths = SimpleNamespace(attempts=str(tmp_path / "attempts"))  # type: ignore[assignment]
    node.next._own = {**OWN, "sight": {"workdir": "/w"}}
    blamed = {**OWN, "sight": {"workdir": "/w"}, "blame": "rank 1 (pid 7) waits for a file server"}
    node.tell("n1", after=blamed)
    node.next.see(Cause("hang", "no rank has shown a sign of life for 300 s", "n0"))
    node.poll()
    assert "rank 1 (pid 7) waits for a file server on n1; " in node.next.why_not
    assert node.next.why_not.endswith("clusterctl resume r --checkpoint latest --exclude n1")


def test_a_run_that_is_to_end_if_it_is_hung_does_not_restart() -> None:
    node = Node(hang={"action": "stop"})
    node.next.see(Cause("hang", "no rank has shown a sign of life for 300 s", "n0"))
    node.poll()
    assert node.next.why_not == "it was hung, and job.hang.action is stop"


@pytest.mark.parametrize("changes", [{"restart": None}, {"elastic": {"max_nodes": 2}}])
def test_a_run_that_does_not_restart_is_over_at_once(changes: dict[str, Any]) -> None:
    node = Node(**changes)
    assert node.poll() == OVER
    assert (node.told, node.next.verdict) == ([], {})


LINEUP: dict[str, Any] = {
    "seats": [{"node": f"n{n}", "address": "a", "procs": 1} for n in range(4)], "launch": {},
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "workers": ["n1", "n2", "n3"], "spares": ["n3"], "lineup": LINEUP,
    "stop": {"failure_grace": 1.0},
}  # fmt: skip


def test_a_worker_that_is_left_out_ends_and_tells_nobody() -> None:
    node = Node(1, **OTHERS)
    node.peers.again = {**AGAIN, "without": ["n1"]}
    assert node.poll() == OVER
    assert "continues without this node: w" in node.next.why_not
    assert node.endings == [], "the others go on"


@pytest.mark.parametrize(("without", "state"), [([], GO), (["n1"], OPEN)])
def test_only_a_spare_that_gets_ranks_must_have_seen_the_checkpoint(
    without: list[str], state: str
) -> None:
    node = Node(3, **OTHERS)
    node.peers.again = {**AGAIN, "checkpoint": "ckpt/c-9", "without": without, "go": True}
    assert node.poll() == state
    assert bool(node.endings) == (state == OPEN)


def test_a_node_that_falls_silent_between_two_attempts_is_left_out_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def decide(*given: Any) -> Any:
        asked.append(tuple(given[5]))
        decision = SimpleNamespace(
            action="again", why="why", wait_s=0.0, exit_code=None, without=asked[-1]
        )
        return found_of(decision)

    monkeypatch.setattr(decide_next, "decide_next", decide)
    node = Node(**OTHERS)
    node.tell("n1", "n2", "n3")
    assert node.poll() == OPEN
    node.peers.silences = {"n2": 6.0}
    assert (node.poll(), node.poll()) == (OPEN, OPEN)
    assert asked == [(), ("n2",)]
    assert [one["without"] for one in node.told] == [[], ["n2"]]
    # It is waited for until it has certainly ended its ranks.
    assert node.told[-1]["wait_s"] >= 4.0
    assert node.poll() == OPEN


def test_a_spare_that_is_gone_is_not_decided_with(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def decide(*given: Any) -> Any:
        asked.append(set(given[3]))
        decision = SimpleNamespace(
            action="again", why="why", wait_s=0.0, exit_code=None, without=("n3",)
        )
        return found_of(decision)

    monkeypatch.setattr(decide_next, "decide_next", decide)
    node = Node(**OTHERS)
    node.tell("n1", "n2", "n3")
    assert node.poll() == OPEN
    node.peers.others["n3"] = node.peers.others["n3"].lost(-100.0)
    node.peers.silences = {"n3": 100.0}
    assert (node.poll(), node.poll()) == (OPEN, GO)
    assert asked == [{"n0", "n1", "n2", "n3"}, {"n0", "n1", "n2"}]
    node.join("n3")
    node.peers.others["n3"] = node.peers.others["n3"].ended(OWN)
    node.poll()
    assert asked[2:] == [{"n0", "n1", "n2", "n3"}], "it is back"


def test_a_run_that_lacks_nodes_waits_for_one_to_join_and_begins_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def decide(*given: Any) -> Any:
        asked.append(given[6:])
        lacks, again = not given[6], SimpleNamespace(
            action="end" if not given[6] else "again", why="no node", wait_s=0.0, exit_code=None,
            without=("n1",),
        )  # fmt: skip
        return found_of(again, lacks=lacks, joined=given[6], end="of the attempt")

    monkeypatch.setattr(decide_next, "decide_next", decide)
    node = Node(**{**OTHERS, "spares": []}, restart={**RESTART, "wait": 60.0})
    node.tell("n1", "n2", "n3")
    assert [node.poll() for _ in range(3)] == [OPEN] * 3
    assert (asked, node.events, node.waits) == ([([], None)], ["waits"], ["no node"])
    assert node.next.account["waits"]["why"] == "no node"
    (out,) = map(parse_again, node.dismissed)  # for n1, which ends and can be repaired
    assert (out["attempt"], out["without"], out["go"], node.told) == (2, ["n1"], False, [])
    seat, node.peers.all_done = node.join("n1"), False
    assert (node.poll(), len(asked)) == (OPEN, 1)  # it has not told what it has
    node.peers.others["n1"], node.peers.all_done = node.peers.others["n1"].ended(OWN), True
    assert (node.poll(), node.poll()) == (OPEN, GO)
    assert asked[1:] == [([seat], "of the attempt")]
    assert (node.told[-1]["joined"], node.next.account["waits"]) == ([seat], None)


def test_the_next_attempt_does_not_begin_while_a_node_that_was_let_in_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would not know the node, which would end."""
    decides(monkeypatch, "again")
    node = Node(**OTHERS)
    node.tell("n1", "n2", "n3")
    node.peers.others["n4"] = Peer(4, ADMITTED).admitted(time.monotonic())
    node.peers.silences = {"n4": -1.0}
    assert [node.poll() for _ in range(3)] == [OPEN] * 3
    node.peers.silences = {"n4": 1.0}
    assert node.poll() == GO, "it does not come"


def test_a_run_that_waited_in_vain_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    end = SimpleNamespace(action="end", why="no node", wait_s=0.0, exit_code=None, without=())
    found = found_of(end, lacks=True, way_on="; without it: X")
    monkeypatch.setattr(decide_next, "decide_next", lambda *_: found)
    node = Node(**OTHERS, restart={**RESTART, "wait": 60.0})
    node.tell("n1", "n2", "n3")
    assert node.poll() == OPEN
    node.master._wait_until = 0.0
    node.poll()
    why = node.next.verdict["no_restart"]
    assert why == "no node; no node joined in time; without it: X"
