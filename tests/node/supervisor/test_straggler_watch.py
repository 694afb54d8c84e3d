"""A supervisor looks at the ranks of which the master suspects that they are slow, and says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang.sample import RankSample
from clusterctl.node.hang.slow_reasons import NONE
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.processes import Process
from clusterctl.node.supervisor import apart
from clusterctl.node.supervisor.watch.straggler_watch import MOST_LOOKS, StragglerWatch
from tests.node.conftest import Head

PID = 100
PROCESS = Process(PID, 1, PID, 1, "S", 1, 0)


class Apart:
    """What is done in children: nothing runs until a test starts it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Head], None]] = []

    def run(
        self, loop: object, work: object, on_result: Callable[[Head], None], **_: object
    ) -> None:
        del loop, work
        self.waiting.append(on_result)

    def answer(self, told: Head) -> None:
        self.waiting.pop()(told)


class Record:
    """A run's folder, in memory."""

    def __init__(self) -> None:
        self.paths = NodePaths("/none")
        self.events: list[Head] = []

    def event(self, kind: str, **details: object) -> None:
        self.events.append({"kind": kind, **details})


class Node:
    """A node with rank 3, sampled every 5 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> None:
        self.apart, self.record = Apart(), Record()
        monkeypatch.setattr(apart, "run_apart", self.apart.run)
        job: Any = {"device": device, "hang": {"after": 300.0}}
        record: Any = self.record
        self.changes = 0
        self.watch = StragglerWatch(EventLoop(), job, record, list, self.change)
        self.last: RankSample | None = None
        self.ran = 0.0

    def change(self) -> None:
        self.changes += 1

    def sample(self, states: str = "SS", ran: float = 2.0, queued: float = 0.0) -> None:
        """Take a sample in which it was seen in these states."""
        for state in states:
            self.watch.scan([Process(PID, 1, PID, 1, state, 1, 0)])
        moment = self.last.moment + 5.0 if self.last else 0.0
        self.ran += ran
        main = {PROCESS.key: (self.ran, queued * moment / 5.0)}
        now = RankSample(moment, (0, 0), {}, {}, main, {}, 0.0)
        self.watch.sample(3, PID, self.last, now)
        self.watch.sampled([3])
        self.last = now

    def judged(self, *, sure: bool, rank: int = 3) -> None:
        self.watch.take([{"rank": rank, "lost": 0.4, "sure": sure}])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(monkeypatch)
    made.sample()
    return made


@pytest.mark.parametrize(
    ("states", "queued", "own"),
    [("SS", 0.0, 2.0), ("SD", 0.0, 4.5), ("tT", 0.0, 5.0), ("RR", 1.5, 3.5)],
)
def test_a_ranks_own_time_is_what_it_ran_wanted_to_run_or_was_kept_from_running(
    node: Node, states: str, queued: float, own: float
) -> None:
    node.sample(states, queued=queued)
    assert node.watch.told == [[3, 5.0, own, 2.0, 0, 0]]


def test_a_process_that_is_new_begins_anew(node: Node) -> None:
    node.sample()
    assert node.last
    node.watch.sample(3, PID + 1, node.last, node.last)
    assert node.watch.told == [[3, 0.0, 0.0, 0.0, 0, 0]]
    node.watch.sampled([])
    assert node.watch.told == []


def test_only_a_suspects_stacks_are_looked_at_one_look_at_a_time(node: Node) -> None:
    node.sample()
    assert not node.apart.waiting
    node.judged(sure=False)
    node.sample()
    node.sample()
    assert len(node.apart.waiting) == 1
    node.apart.answer({"3": {"waits": True, "where": ""}})
    assert node.watch.told[0][4:] == [1, 1]
    node.sample()
    node.apart.answer({"3": {"waits": False, "where": "train.py:88 step"}})
    assert node.watch.told[0][4:] == [2, 1]
    node.sample()
    node.apart.answer({})  # no stack could be read
    assert node.watch.told[0][4:] == [2, 1]
    assert not node.record.events


def test_where_no_stack_can_be_read_the_looks_come_to_an_end(node: Node) -> None:
    node.judged(sure=False)
    looks = 0
    for _ in range(2 * MOST_LOOKS):
        node.sample()
        if node.apart.waiting:
            node.apart.answer({})
            looks += 1
    assert looks == MOST_LOOKS


def test_a_slow_rank_is_told_of_once_with_its_reason_and_once_when_that_is_over(node: Node) -> None:
    node.judged(sure=False)
    node.sample("TT")
    node.apart.answer({"3": {"waits": False, "where": "train.py:88 step"}})
    node.judged(sure=True)
    node.judged(sure=True)
    node.apart.answer({"reason": "too hot"})
    assert not node.apart.waiting
    node.judged(sure=True)
    (event,) = node.record.events
    told = {"rank": 3, "lost_percent": 40, "reason": "too hot", "where": "train.py:88 step"}
    assert event == {"kind": "straggler", "since": event["since"], **told}
    (account,) = node.watch.account["stragglers"]
    assert told.items() <= account.items()
    node.watch.take([])
    node.watch.take([])
    assert [one["kind"] for one in node.record.events] == ["straggler", "straggler-over"]
    assert node.watch.account == {"stragglers": []}
    assert node.changes == 2


def test_a_rank_that_is_no_longer_slow_when_its_reason_is_found_is_not_told_of(node: Node) -> None:
    node.judged(sure=True)
    node.watch.take([])
    node.apart.answer({"reason": "too hot"})
    assert not node.record.events
    node.judged(sure=True, rank=7)  # of another node
    assert not node.apart.waiting


@pytest.mark.parametrize(("device", "told"), [("cpu", True), ("cuda", False)])
def test_on_gpus_a_rank_without_a_reason_may_only_poll(
    monkeypatch: pytest.MonkeyPatch, device: str, *, told: bool
) -> None:
    node = Node(monkeypatch, device)
    node.sample()
    node.judged(sure=True)
    node.apart.answer({})
    assert [one["reason"] for one in node.record.events] == ([NONE] if told else [])


def test_the_master_tells_each_node_of_its_own_ranks(node: Node) -> None:
    found: Head = {}
    for n in range(1, 40):
        looks = max(0, n - 12)
        told = {
            "a": [[0, 5.0 * n, 2.5 * n, 0.0, 0, 0], [1, 5.0 * n, 2.5 * n, 0.0, 0, 0]],
            "b": [[2, 5.0 * n, 4.9 * n, 4.9 * n, looks, 0]],
        }
        found = node.watch.judge(told)
    assert found == {"b": [{"rank": 2, "lost": 0.48, "sure": True}]}
    assert node.watch.judge({}) == {}  # hung, or over


def test_a_master_that_changes_its_mind_without_end_starts_no_process_each_time(node: Node) -> None:
    for _ in range(50):
        node.judged(sure=True)
        node.watch.take([])
    assert len(node.apart.waiting) == 1
