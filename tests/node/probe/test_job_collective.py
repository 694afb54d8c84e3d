"""Sums and exchanges between real ranks, and which pairs exchange data, and which do so again."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.probe.trial import job_collective
from clusterctl.node.probe.trial.job_collective import (
    OF_ONE,
    RETESTS,
    UNKNOWN,
    best_rates,
    retests,
    tournament,
)
from clusterctl.node.probe.trial.job_ladder import run_each
from tests.lazy_torch import dist, torch


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


def group_of(name: str, rank: int, world: int, port: int, **more: Any) -> dict[str, Any]:
    where = {"address": "127.0.0.1", "port": port, "limit_s": 20.0}
    return {"name": name, "rank": rank, "world": world, "device": "cpu", **where, **more}


def together(
    world: int, rank_work: Callable[[dict[str, Any]], dict[str, Any]], **more: Any
) -> list[dict[str, Any]]:
    """Return what each rank came to, in a process of its own, by Gloo over loopback."""
    from torch import distributed

    dist: Any = distributed  # its stores are not in its list of names
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    groups = [group_of("test", rank, world, store.port, **more) for rank in range(world)]

    def alone(group: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(1)  # a fork does not have the threads of an earlier test
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        return rank_work(group)

    work = {str(g["rank"]): functools.partial(alone, g) for g in groups}
    return list(run_each(work, 60.0).values())


@pytest.mark.torch
def test_pairs_use_the_communicator_of_the_sum() -> None:
    """A plain send makes NCCL build a communicator for the pair: from 64 nodes there is no time."""

    def without_plain_sends(group: dict[str, Any]) -> dict[str, Any]:
        dist.send = dist.recv = dist.new_group = None  # type: ignore[assignment]
        return job_collective.all_reduce(group)

    found = together(3, without_plain_sends, pairs=True)

    for rank, answer in enumerate(found):
        assert (answer["state"], answer.get("right")) == ("ok", True), answer
        assert [pair is None for pair in answer["pairs"]] == [rank == peer for peer in range(3)]
        assert all(trip > 0 and gbps > 0 for trip, gbps in filter(None, answer["pairs"]))
        assert answer["block_bytes"] in job_collective.BLOCKS["cpu"]


@pytest.mark.torch
def test_pairs_for_which_there_is_no_time_are_unknown_and_not_slow() -> None:
    def in_a_hurry(group: dict[str, Any]) -> dict[str, Any]:
        ranks = job_collective.join(group)
        late = float("-inf") if group["rank"] == 1 else float("inf")
        return job_collective.exchange(ranks, late)  # one late rank decides for all

    found = together(2, in_a_hurry)

    assert [(answer["state"], answer.get("pairs")) for answer in found] == [
        ("ok", [None, None]), ("ok", [None, None]),
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("wrong_at", [1, 7])
def test_one_wrong_number_of_a_sum_is_seen_by_all(wrong_at: int) -> None:
    """Also in a later round: each timed sum is checked."""

    def flipping(group: dict[str, Any]) -> dict[str, Any]:
        right, done = dist.all_reduce, []

        def all_reduce(tensor: Any, **more: Any) -> Any:
            right(tensor, **more)
            if tensor.numel() > 1:
                done.append(1)
                if len(done) == 2 + wrong_at and group["rank"] == 0:
                    tensor[3] += 1

        dist.all_reduce = all_reduce  # type: ignore[assignment]
        # How many rounds there are, and how many of them only warm up, depends on the machine.
        job_collective.SUM_SECONDS, job_collective.WARM_ROUNDS = float("inf"), (2, 2)
        return job_collective.all_reduce(group)

    found = together(2, flipping)

    assert [(answer["state"], answer.get("right")) for answer in found] == [("ok", False)] * 2


@pytest.mark.torch
def test_a_rank_that_never_comes_ends_the_others_in_time() -> None:
    def absent(group: dict[str, Any]) -> dict[str, Any]:
        return {} if group["rank"] == 1 else job_collective.all_reduce(group)

    found = together(2, absent, limit_s=2.0)

    assert (found[0]["state"], "out" in found[0]["error"].lower()) == ("error", True), found


def test_pairs_that_were_not_tried_are_neither_slow_nor_tried_again() -> None:
    sparse = [[UNKNOWN if abs(a - b) != 1 else 10.0 for b in range(6)] for a in range(6)]

    assert retests(sparse) == []
    assert best_rates(sparse) == [10.0] * 6
