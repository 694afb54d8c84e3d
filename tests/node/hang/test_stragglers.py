"""Which rank the others wait for, and that none is named where nobody is slow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from clusterctl.node.hang.stragglers import LOOKS, SAMPLES, Key, Stragglers, Work

PERIOD = 5.0
RECORDED = sorted((Path(__file__).parent / "stragglers").glob("*.json"))

Shares = Sequence[float]
"""What share of one sample each rank had work of its own."""


class Watched:
    """A run whose ranks do what a test says; rank N is on node N."""

    def __init__(self, *, polls: bool = False, runs: float = 1.0) -> None:
        self.run, self.polls, self.runs = Stragglers(PERIOD), polls, runs
        self.works: dict[Key, Work] = {}
        self.history: list[set[int]] = []
        """After each sample, the ranks that are slow for sure."""

    def see(self, samples: Iterable[Shares], waits: Callable[[int], bool] | None = None) -> Watched:
        """Take samples; `waits`: what each look at a suspect finds, None: nobody can look."""
        for shares in samples:
            for rank, share in enumerate(shares):
                key = (f"n{rank}", rank)
                known = self.works.get(key, Work(0.0, 0.0, 0.0))
                seen, own = known.seen + PERIOD, known.own + share * PERIOD
                known = known._replace(seen=seen, own=own, ran=own * self.runs)
                if waits is not None and key in self.run.slow:
                    looks = known.looks + 1
                    known = known._replace(looks=looks, waits=known.waits + waits(rank))
                self.works[key] = known
            self.run.see(self.works, polls=self.polls)
            self.history.append(self.slow)
        return self

    @property
    def slow(self) -> set[int]:
        return {rank for (_, rank), one in self.run.slow.items() if one.sure}


def works(rank: int) -> bool:
    del rank
    return False


def polls(rank: int) -> bool:
    del rank
    return True


EQUAL = [(0.5, 0.55, 0.45, 0.5)] * 60
RANK_2_SLOW = [(0.5, 0.5, 0.95, 0.5)] * 60


def test_a_rank_that_works_while_the_others_wait_is_slow_after_a_minute_and_some_looks() -> None:
    seen = Watched().see(RANK_2_SLOW, works)
    assert seen.slow == {2}
    first = seen.history.index({2})
    assert SAMPLES <= first <= SAMPLES + LOOKS + 2
    (one,) = seen.run.slow.values()
    assert one.lost == pytest.approx(0.45)


@pytest.mark.parametrize(
    "samples",
    [
        EQUAL,
        [(0.0,) * 4] * 60,  # all rest
        [(1.0,) * 4] * 60,  # all compute, or all poll
        [(0.5, 0.6, 0.4, 0.55)] * 60,  # no more than usual
        [(1.0, 0.0, 0.0, 0.0)] * 60,  # rank 0 tokenizes for long
        [*[(0.5,) * 4] * 20, *[(1.0, 0.0, 0.0, 0.0)] * 12, *[(0.5,) * 4] * 20],  # it saves
        [*[(0.5,) * 4] * 20, *[(0.4, 0.0, 0.0, 0.0)] * 6, *[(0.5,) * 4] * 20],
        [*[(0.5,) * 4] * 9, (0.95, 0.1, 0.1, 0.1)] * 6,  # a short evaluation now and then
        [*[(0.5,) * 4] * 8, *[(1.0, 0.05, 0.05, 0.05)] * 4] * 5,  # a longer one
        [(0.9,)] * 60,  # one rank has nobody to wait for it
    ],
)
def test_nobody_is_slow_if_all_are_alike_or_one_only_works_for_a_while(
    samples: Sequence[Shares],
) -> None:
    seen = Watched().see(samples, works)
    assert not any(seen.history)


def test_who_polls_while_it_waits_is_not_slow() -> None:
    """Rank 1 reads from a slow disk at rest; the others poll in their collective meanwhile."""
    shares = [(1.0, 0.4)] * 60
    seen = Watched().see(shares, polls)
    assert not any(seen.history)
    assert [one.refuted for one in seen.run.slow.values()] == [True]
    assert not any(Watched().see(shares, None).history)  # and nobody can look


def test_where_nobody_can_look_the_others_must_be_in_the_majority_and_not_poll() -> None:
    assert Watched().see(RANK_2_SLOW, None).slow == {2}
    assert not Watched(polls=True).see(RANK_2_SLOW, None).slow
    assert not Watched().see([(0.9, 0.4)] * 60, None).slow
    assert not Watched().see([(0.9, 0.9, 0.4, 0.4)] * 60, None).slow


def test_who_is_kept_from_running_does_not_poll_whatever_its_stacks_show() -> None:
    """Where it wants a CPU in vain, it spends longer in a collective, too."""
    assert Watched(runs=0.1).see(RANK_2_SLOW, polls).slow == {2}
    assert Watched(runs=0.1).see([(0.9, 0.4)] * 60, None).slow == {0}


def test_who_waits_a_little_is_slow_all_the_same() -> None:
    looks = iter([True, False] + [False] * 60)
    assert Watched().see(RANK_2_SLOW, lambda _: next(looks)).slow == {2}


def test_several_ranks_of_a_slow_node_are_slow_together() -> None:
    assert Watched().see([(0.9, 0.9, 0.4, 0.4)] * 60, works).slow == {0, 1}


def test_a_rank_with_steps_longer_than_a_sample_is_slow_all_the_same() -> None:
    step = [(1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 0.0)]  # 15 s, the others work for 5 of it
    assert Watched().see(step * 20, works).slow == {0}


def test_a_slow_rank_stays_slow_until_it_clearly_no_longer_is() -> None:
    seen = Watched().see(RANK_2_SLOW, works)
    seen.see([(0.5, 0.5, 0.68, 0.5)] * 30, works)  # less than from where on it would be named
    assert seen.slow == {2}
    seen.see([(0.0, 0.0, 0.9, 0.0)] * 6, works)  # it saves meanwhile
    assert seen.slow == {2}
    seen.see(EQUAL, works)
    assert not seen.slow


def test_a_rank_that_starts_again_begins_anew() -> None:
    seen = Watched().see(RANK_2_SLOW, works)
    seen.works.clear()
    seen.see([(0.5, 0.5, 0.95, 0.5)], works)
    assert not seen.run.slow


def test_samples_count_once_all_nodes_have_told_of_theirs() -> None:
    """A node that is silent for a while leaves the others unjudged."""
    seen = Watched().see(RANK_2_SLOW[:5], works)
    told = dict(seen.works)
    for key in (("n0", 0), ("n2", 2)):
        for _ in range(60):
            work = told[key]
            told[key] = work._replace(seen=work.seen + PERIOD, own=work.own + PERIOD)
            seen.run.see(told)
    assert not seen.run.slow


def test_a_node_that_tells_nonsense_concerns_itself_alone() -> None:
    seen = Watched().see([(0.5, 0.5, 1e9, 0.5)] * 30, works)
    assert seen.slow == {2}
    assert all(one.lost <= 1.0 for one in seen.run.slow.values())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_real_ranks(path: Path) -> None:
    """Recorded from gloo ranks that all-reduce in steps, by the code that samples them."""
    case = json.loads(path.read_text())
    run = Stragglers(case["period"])
    found: set[int] = set()
    for sample in case["samples"]:
        told = {("n", rank): Work(seen, own, own) for rank, (seen, own, *_) in enumerate(sample)}
        run.see(told)
        found |= {rank for (_, rank), one in run.slow.items() if one.sure}
    assert found == set(case["slow"])


def test_there_are_recordings() -> None:
    assert len(RECORDED) > 4
