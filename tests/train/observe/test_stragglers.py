"""Who is slow: one slowed rank is named with its cause; where nobody is, nobody is."""

from __future__ import annotations

import random

import pytest

from train.observe.stragglers import Cause, Watch, Window, slow_ranks


def windows(
    own: list[float],
    *,
    data: list[float] | None = None,
    network: float = 0.1,
    padded_tokens: list[int] | None = None,
) -> list[Window]:
    """Return what ranks with these own times measure: all wait for the slowest."""
    count = len(own)
    wall = max(own) + network
    return [
        Window(
            steps=10,
            wall=wall,
            data=(data or [0.0] * count)[rank],
            forward=own[rank] / 3,
            waited=wall - own[rank],
            padded_tokens=(padded_tokens or [100] * count)[rank],
        )
        for rank in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 16])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slowed_rank_is_named(count: int, slow: int) -> None:
    own = [1.0] * count
    own[slow] = 1.6
    (found,) = slow_ranks(windows(own), 1.2)
    assert (found.rank, found.cause) == (slow, "compute")
    assert 1.4 < found.ratio < 1.7


@pytest.mark.parametrize(("waiting", "cause"), [(0.6, "data"), (0.0, "compute")])
def test_the_cause_is_named(waiting: float, cause: Cause) -> None:
    (found,) = slow_ranks(windows([1.0, 1.6, 1.0], data=[0.0, waiting, 0.0]), 1.2)
    assert found.cause == cause


def test_equal_ranks_are_nobody_s_fault() -> None:
    rng = random.Random(0)
    watch = Watch(1.2)
    for _ in range(300):
        own = [rng.uniform(0.95, 1.1) for _ in range(8)]
        assert watch.see(windows(own)) == ()


def test_a_hiccup_is_not_named_and_a_lasting_one_is() -> None:
    watch = Watch(1.2)
    assert watch.see(windows([1.0, 2.0, 1.0])) == ()
    assert watch.see(windows([1.0, 1.0, 1.0])) == ()
    assert watch.see(windows([1.0, 2.0, 1.0])) == ()
    assert [slow.rank for slow in watch.see(windows([1.0, 2.0, 1.0]))] == [1]


def test_more_work_is_not_slowness() -> None:
    assert slow_ranks(windows([1.0, 1.3, 1.0], padded_tokens=[100, 130, 100]), 1.2) == ()
    assert slow_ranks(windows([1.0, 1.5, 1.0], padded_tokens=[100, 50, 100]), 1.2)


def test_where_waiting_cannot_be_seen_the_forward_pass_tells() -> None:
    rows = [
        Window(steps=10, wall=5.0, data=0.0, forward=forward, waited=None, padded_tokens=100)
        for forward in (1.0, 1.0, 1.5, 1.0)
    ]
    (found,) = slow_ranks(rows, 1.2)
    assert (found.rank, found.cause) == (2, "compute")
    assert found.ratio == pytest.approx(1.5)


def test_a_few_milliseconds_are_nobody_s_fault() -> None:
    assert slow_ranks(windows([0.1, 0.14, 0.1]), 1.2) == ()
    assert slow_ranks(windows([0.1, 0.16, 0.1]), 1.2)


def test_a_single_rank_is_not_compared() -> None:
    watch = Watch(1.0)
    assert [watch.see(windows([1.0])) for _ in range(3)] == [(), (), ()]
