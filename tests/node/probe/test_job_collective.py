"""Which pairs of ranks exchange data, and which do so again: pure functions of the program."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.probe.job_collective import OF_ONE, RETESTS, best_rates, retests, tournament


@given(st.integers(1, 40))
def test_each_rank_meets_each_other_one_once_and_one_at_a_time(world: int) -> None:
    rounds = tournament(world)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]

    assert sorted(met) == list(itertools.combinations(range(world), 2))
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))


def rates(world: int, slow: dict[tuple[int, int], float]) -> list[list[float]]:
    return [
        [slow.get((min(a, b), max(a, b)), 10.0) if a != b else 0.0 for b in range(world)]
        for a in range(world)
    ]


def test_only_slow_pairs_are_tried_again() -> None:
    assert retests(rates(4, {})) == []
    assert retests(rates(4, {(1, 2): 1.0})) == [(1, 2)]
    # Rank 3 is slow with all: it is tried again with some of them.
    everyone = rates(8, {(rank, 3) if rank < 3 else (3, rank): 1.0 for rank in range(8)})
    assert len(retests(everyone)) == OF_ONE
    assert all(3 in pair for pair in retests(everyone))
    assert best_rates(everyone)[3] == 1.0


def test_of_two_ranks_none_is_slower() -> None:
    assert retests(rates(2, {(0, 1): 0.001})) == []


@given(
    st.integers(2, 12).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(0, 100), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
def test_any_rates_give_a_bounded_list_of_pairs(found: list[list[float]]) -> None:
    again = retests(found)
    assert len(again) <= RETESTS
    assert len(set(again)) == len(again)
