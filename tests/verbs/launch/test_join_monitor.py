"""Who has joined, who is missing, and when waiting is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.plan.plan import Plan
from clusterctl.verbs.events import Event, NodeEvent, ignore
from clusterctl.verbs.follow import Tick
from clusterctl.verbs.launch import join_monitor
from clusterctl.verbs.launch.join_monitor import JoinMonitor, JoinProgress, StartTimeout
from tests.verbs.run_answers import PLAN


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(join_monitor, "time", made)
    return made


def watch(clock: Clock, *steps: tuple[float, Event], plan: Plan = PLAN) -> list[Event]:
    """Let these events come, each so many seconds after the one before."""
    gatherer = JoinMonitor(plan, began=clock.now, _last_news=clock.now)
    seen: list[Event] = []
    for seconds, event in steps:
        clock.now += seconds
        gatherer.see(event, emit=seen.append)
        late = gatherer.timeout()
        if late is not None:
            seen.append(late)
    return [one for one in seen if isinstance(one, JoinProgress | StartTimeout)]


def happened(kind: str, rank: int, **more: Any) -> NodeEvent:
    return NodeEvent(node="ab"[rank], event={"kind": kind, "rank": rank, **more})


def both(kind: str) -> list[tuple[float, Event]]:
    return [(0.0, happened(kind, rank)) for rank in (0, 1)]


def test_joins_are_counted_and_the_missing_named(clock: Clock) -> None:
    seen = watch(clock, *both("rank-started"), *both("rank-joined"), (99.0, Tick()))
    assert [(one.joined, one.missing) for one in seen if isinstance(one, JoinProgress)] == [
        (1, ("b:1",)),
        (2, ()),
    ]


def test_silence_names_the_missing_again_and_ends_at_the_timeout(clock: Clock) -> None:
    first, second = PLAN.nodes
    nodes = (replace(first, procs=2), replace(second, first_rank=2))
    third = NodeEvent(node="b", event={"kind": "rank-started", "rank": 2})
    seen = watch(
        clock,
        *both("rank-started"),
        (0.0, third),
        (1.0, happened("rank-joined", 0)),
        (join_monitor.QUIET_SECONDS, Tick()),
        (60.0, Tick()),
        plan=replace(PLAN, nodes=nodes, world_size=3),
    )
    assert [type(one) for one in seen] == [JoinProgress, JoinProgress, JoinProgress, StartTimeout]
    assert isinstance(seen[1], JoinProgress)
    assert seen[1].quiet
    assert isinstance(seen[-1], StartTimeout)
    assert seen[-1].missing == ("a:1", "b:2")


def test_a_script_that_runs_once_per_node_may_be_busy_while_others_wait(clock: Clock) -> None:
    joined = (0.0, happened("rank-joined", 0))
    nodes = tuple(replace(node, procs_origin="--procs-per-node") for node in PLAN.nodes)
    steps = (*both("rank-started"), joined, *[(10.0, Tick())] * 99)
    # A rank for the only GPU of each node is a rank.
    assert isinstance(watch(clock, *steps)[-1], StartTimeout)
    seen = watch(clock, *steps, plan=replace(PLAN, nodes=nodes))
    assert all(isinstance(one, JoinProgress) and one.missing == ("b:1",) for one in seen)
    assert [one.seconds for one in seen if isinstance(one, JoinProgress)][1:4] == [10.0, 30.0, 70.0]


def test_a_rank_that_was_never_started_is_waited_for(clock: Clock) -> None:
    seen = watch(clock, (0.0, happened("rank-started", 0)), (61.0, Tick()))
    assert isinstance(seen[-1], StartTimeout)
    assert seen[-1].missing == ("a:0", "b:1")


def test_a_job_without_a_rendezvous_is_told_ever_more_rarely_and_left_alone(clock: Clock) -> None:
    seen = watch(clock, *both("rank-started"), *[(10.0, Tick())] * 99)
    told = [one.seconds for one in seen if isinstance(one, JoinProgress)]
    assert told == [10.0, 30.0, 70.0, 150.0, 310.0, 630.0]
    assert not any(isinstance(one, StartTimeout) for one in seen)


def test_ranks_that_a_launcher_has_started_are_told_ever_more_rarely(clock: Clock) -> None:
    master = replace(PLAN.nodes[0], launcher_argv=("torchrun",))
    joined = (0.0, happened("rank-joined", 0))
    plan = replace(PLAN, nodes=(master, PLAN.nodes[1]))
    seen = watch(clock, *both("rank-started"), joined, *[(10.0, Tick())] * 99, plan=plan)
    told = [one.seconds for one in seen if isinstance(one, JoinProgress) and one.quiet]
    assert told == [10.0, 30.0, 70.0, 150.0, 310.0, 630.0]
    assert not any(isinstance(one, StartTimeout) for one in seen)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_that_a_launcher_has_started_and_a_single_node_may_take_their_time(
    clock: Clock, nodes: int
) -> None:
    argv = ("torchrun",) if nodes == 2 else ()
    master = replace(PLAN.nodes[0], launcher_argv=argv, procs=3 - nodes)
    plan = replace(PLAN, nodes=(master, *PLAN.nodes[1:nodes]))
    assert watch(clock, *both("rank-started"), (999.0, Tick()), plan=plan) == []


def test_after_an_end_nobody_is_waited_for(clock: Clock) -> None:
    seen = watch(
        clock,
        *both("rank-started"),
        (0.0, happened("rank-joined", 0)),
        (0.0, happened("rank-ended", 1, exit_code=1)),
        (999.0, Tick()),
    )
    assert [type(one) for one in seen] == [JoinProgress]


def test_a_launcher_that_does_not_reach_the_master_is_named_and_not_all_ranks(clock: Clock) -> None:
    seen = watch(
        clock, (0.0, NodeEvent(node="a", event={"kind": "launcher-joined"})), (61.0, Tick())
    )
    assert isinstance(seen[-1], StartTimeout)
    assert seen[-1].missing == ("b",)


def test_how_long_the_ranks_have_waited_is_told(clock: Clock) -> None:
    again = [(join_monitor.QUIET_SECONDS + 2, Tick())] * 2
    seen = watch(clock, (0.0, happened("rank-started", 0)), *again)
    assert [one.seconds for one in seen if isinstance(one, JoinProgress)] == [12.0, 24.0]


def test_a_launcher_may_deal_the_ranks_to_other_nodes_than_planned(clock: Clock) -> None:
    dealt = [NodeEvent(node="ba"[n], event={"kind": "rank-joined", "rank": n}) for n in (0, 1)]
    seen = watch(clock, *both("rank-started"), *((0.0, one) for one in dealt), (999.0, Tick()))
    assert [one.missing for one in seen if isinstance(one, JoinProgress)] == [("b:1",), ()]
    assert not any(isinstance(one, StartTimeout) for one in seen)


@pytest.mark.parametrize("number", [-1, 2, 10**30])
def test_a_rank_that_the_run_does_not_have_has_not_joined(clock: Clock, number: int) -> None:
    strange = NodeEvent(node="a", event={"kind": "rank-joined", "rank": number})
    assert watch(clock, *both("rank-started"), (0.0, strange)) == []


def test_a_start_is_over_a_while_after_all_have_joined_unless_the_run_is(clock: Clock) -> None:
    begun = clock.now
    gatherer = JoinMonitor(PLAN, began=begun, _last_news=begun)
    gatherer.see(happened("rank-joined", 0), emit=ignore)
    clock.now += join_monitor.SETTLE_SECONDS
    gatherer.see(happened("rank-joined", 1), emit=ignore)
    assert not gatherer.settled
    clock.now += join_monitor.SETTLE_SECONDS
    assert gatherer.settled
    gatherer.see(happened("rank-ended", 1), emit=ignore)
    assert not gatherer.settled
    elsewhere = JoinMonitor(PLAN, began=clock.now - join_monitor.NO_MEETING_SECONDS)
    assert elsewhere.settled
