"""Batches: every sample once an epoch on any number of ranks, and the same set in each step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.config.batch_size import batch_size
from train.config.config import Config
from train.data.batches import Batches, Pool, Position, Step, assign, order
from train.data.collate import Batch, collate
from train.data.encoding import IGNORED
from train.data.mixture import Share, Sizes
from train.data.token_store import Ints
from train.errors import ConfigError


class Samples(Sizes):
    """Samples whose every token is the sample's own number: a batch shows whose it is."""

    def __init__(self, lengths: Ints, first: int, shares: tuple[Share, ...]) -> None:
        super().__init__(lengths=lengths, targets=lengths - 1, numbers=lengths * 0, shares=shares)
        self.first = first

    def __len__(self) -> int:
        return len(self.lengths)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        ids = np.full(self.lengths[number], number + self.first, np.int64)
        return ids, ids


def samples(sizes: list[int], first: int = 1) -> Samples:
    return mixed((sizes, 1.0), first=first)


def mixed(*sets: tuple[list[int], float], first: int = 1) -> Samples:
    """Return several data sets, each with its weight."""
    sizes = [size for each, _ in sets for size in each]
    shares = tuple(Share(samples=len(each), weight=weight) for each, weight in sets)
    return Samples(np.asarray(sizes, np.int64), first, shares)


def make(**keys: object) -> Config:
    return Config(**({"name_or_path": "m", "dataset_path": "d", "seq_len": 64} | keys))  # type: ignore[arg-type]


def ranks_of(
    data: Samples, config: Config, world: int, held_out: Samples | None = None
) -> list[Batches]:
    size = batch_size(config, world)
    return [Batches(data, held_out, config, size, rank=rank) for rank in range(world)]  # type: ignore[arg-type]


def epoch(ranks: list[Batches], position: Position) -> list[list[Step]]:
    """Return the steps of an epoch from a position on, each as all ranks see it."""
    found = []
    begun = position.epoch
    while position.epoch == begun:
        found.append([rank.step(position) for rank in ranks])
        position = found[-1][0].position
    return found


def seen(steps: list[Step]) -> Counter[int]:
    """Return how many tokens of each sample are in a step."""
    ids = np.concatenate([b.input_ids.ravel() for step in steps for b in step.micro_batches])
    return Counter(int(i) for i in ids if i)


SIZES = st.lists(st.integers(2, 64), min_size=1, max_size=60)
MODES = st.sampled_from(["balanced", "packed", "plain"])


@settings(max_examples=150, deadline=None)
@given(SIZES, MODES, st.integers(1, 5), st.integers(1, 4), st.integers(0, 12), st.integers(0, 3))
def test_an_epoch_has_every_sample_once(
    sizes: list[int], mode: str, world: int, each: int, more: int, seed: int
) -> None:
    config = make(
        batching=mode, per_device_train_batch_size=each, global_batch_size=world + more, seed=seed
    )
    ranks = ranks_of(samples(sizes), config, world)
    steps = epoch(ranks, Position(epoch=seed))
    assert len(steps) == ranks[0].steps_per_epoch
    tokens = sum(together[0].tokens for together in steps)
    assert ranks[0].tokens_per_step == pytest.approx(tokens / len(steps))
    whole: Counter[int] = Counter()
    for together in steps:
        whole += seen(together)
        assert len({len(step.micro_batches) for step in together}) == 1
        assert len({step.position for step in together}) == 1
        batches = [batch for step in together for batch in step.micro_batches]
        assert together[0].valid == sum(batch.valid for batch in batches)
        assert together[0].tokens == sum(batch.tokens for batch in batches)
        assert all(batch.input_ids.shape[0] <= each for batch in batches)
    assert whole == Counter({number + 1: size for number, size in enumerate(sizes)})
    assert [step[0].epoch_end for step in steps] == [False] * (len(steps) - 1) + [True]


@settings(max_examples=60, deadline=None)
@given(SIZES, MODES, st.integers(2, 5), st.integers(1, 3))
def test_a_step_is_the_same_set_on_any_number_of_ranks(
    sizes: list[int], mode: str, world: int, each: int
) -> None:
    config = make(batching=mode, per_device_train_batch_size=each, global_batch_size=12)
    alone = epoch(ranks_of(samples(sizes), config, 1), Position())
    many = epoch(ranks_of(samples(sizes), config, world), Position())
    assert [seen(step) for step in alone] == [seen(step) for step in many]
    assert [step[0].valid for step in alone] == [step[0].valid for step in many]


@given(SIZES, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_going_on_with_another_global_batch_loses_nothing(sizes: list[int], then: int) -> None:
    data = samples(sizes)
    first = ranks_of(data, make(global_batch_size=7), 1)[0].step(Position())
    found = seen([first])
    if not first.epoch_end:
        rest = epoch(ranks_of(data, make(global_batch_size=then), 1), first.position)
        found += sum((seen(step) for step in rest), Counter())
    assert found == Counter({number + 1: size for number, size in enumerate(sizes)})


def test_orders_differ_between_epochs_and_seeds_and_are_the_same_again() -> None:
    data = samples([2] * 50)

    def first(seed: int, number: int) -> Counter[int]:
        ranks = ranks_of(data, make(global_batch_size=5, seed=seed), 1)
        return seen([ranks[0].step(Position(epoch=number))])

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(1, 1)
    assert first(1, 0) != first(2, 0)


def test_an_order_takes_four_bytes_a_sample() -> None:
    """Each rank holds the order of an epoch; checkpoints count on what it was with eight."""
    found = order(7, 3, 1000, pool=1)
    assert found.itemsize == 4
    assert (found == np.random.default_rng([7, 3, 1]).permutation(1000)).all()


MIXED = mixed(([3, 5, 9, 4] * 5, 0.5), ([7, 2] * 4, 2.0), ([6] * 3, 1.25))
"""Three data sets: in an epoch 10 of 20 samples, 8 samples twice, and 3 with one of them twice."""


@pytest.mark.parametrize("mode", ["balanced", "plain"])
def test_weights_are_how_often_an_epoch_has_a_sample(mode: str) -> None:
    ranks = ranks_of(MIXED, make(batching=mode, global_batch_size=6), 2)
    halves = []
    for number in (0, 1):
        steps = epoch(ranks, Position(epoch=number))
        tokens = sum((seen(together) for together in steps), Counter())
        times = Counter({i: tokens[i + 1] / MIXED.lengths[i] for i in range(len(MIXED))})
        halves.append({i for i in range(20) if times[i]})
        assert sorted(times[i] for i in range(20)) == [0] * 10 + [1] * 10
        assert [times[i] for i in range(20, 28)] == [2] * 8
        assert sorted(times[i] for i in range(28, 31)) == [1, 1, 2]
        assert len(steps) == ranks[0].steps_per_epoch == 5
    assert halves[0] | halves[1] == set(range(20)), "two epochs have both halves"


@pytest.mark.parametrize("mode", ["balanced", "packed", "plain"])
def test_weighted_steps_depend_neither_on_ranks_nor_on_what_went_before(mode: str) -> None:
    config = make(batching=mode, global_batch_size=4, seq_len=16)
    ranks = ranks_of(MIXED, config, 1)
    positions = [Position()]
    steps: list[Step] = []
    while len(steps) < 20:
        steps.append(ranks[0].step(positions[-1]))
        positions.append(steps[-1].position)
    assert positions[-1].epoch > 1
    for number in (7, 13, 19):
        resumed = [rank.step(positions[number]) for rank in ranks_of(MIXED, config, 3)]
        assert seen(resumed) == seen([steps[number]])
        assert {step.position for step in resumed} == {positions[number + 1]}


def test_packed_rows_have_samples_of_one_data_set_and_its_weight() -> None:
    ranks = ranks_of(MIXED, make(batching="packed", global_batch_size=4, seq_len=16), 1)
    tokens = Counter[int]()
    for number in range(4):
        for together in epoch(ranks, Position(epoch=number)):
            tokens += seen(together)
            for row in (row for batch in together[0].micro_batches for row in batch.input_ids):
                sets = np.searchsorted([21, 29, 32], row[row > 0], side="right")
                assert len(set(sets.tolist())) <= 1
    times = [tokens[i + 1] / MIXED.lengths[i] for i in range(len(MIXED))]
    assert times[:20] == pytest.approx([2] * 20, abs=1)
    assert times[20:28] == [8] * 8


def test_one_data_set_of_weight_1_has_the_order_of_the_epoch() -> None:
    pool = Pool(samples([2] * 50), make(seed=3), 50)
    taken = np.concatenate(pool.take(4, 0))
    assert taken.tolist() == order(3, 4, 50).tolist()


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=80), st.integers(1, 8), st.integers(1, 4))
def test_dealing_out_is_fair(costs: list[float], world: int, each: int) -> None:
    assigned = assign(costs, world, each)
    assert sorted(row for hand in assigned for row in hand) == list(range(len(costs)))
    passes = -(-len(costs) // (world * each))
    assert max(map(len, assigned)) <= passes * each
    for number in range(passes):  # what is in one pass is heavier than all that is in the next
        now = [costs[r] for hand in assigned for r in hand[number * each : (number + 1) * each]]
        then = [costs[r] for hand in assigned for r in hand[(number + 1) * each :]]
        assert not then or min(now) >= max(then)


def test_the_heavier_rows_of_a_pass_go_to_the_rank_that_has_had_least() -> None:
    assert assign([10, 9, 5, 1], 2, 1) == [[0, 3], [1, 2]]
    assert assign([9, 4, 4, 3, 3, 3], 3, 1) == [[0, 5], [1, 3], [2, 4]]


def test_one_long_sample_is_more_work_than_several_with_as_many_tokens() -> None:
    """Attention within a sample grows with the square of its length."""
    sizes = samples([2048, 1024, 1024])
    long, short = sizes.cost(np.array([0])), sizes.cost(np.array([1, 2]))
    assert long / short == pytest.approx(1.11, abs=0.01)


def test_balanced_ranks_hardly_wait_for_each_other() -> None:
    """Sharded ranks meet in every pass: a step takes the sum of the longest ones."""
    rng = np.random.default_rng(3)
    data = samples([int(x) for x in rng.lognormal(5, 1, 512).clip(2, 2000)])

    def lost(mode: str) -> float:
        config = make(per_device_train_batch_size=2, global_batch_size=128, batching=mode)
        rates = []
        for step in epoch(ranks_of(data, config, 8), Position()):
            passes = [[int(b.input_ids.size) for b in one.micro_batches] for one in step]
            longest = sum(map(max, zip(*passes, strict=True)))
            rates.append(longest / (sum(one.tokens for one in step[:1]) / 8))
        return float(np.mean(rates))

    assert lost("balanced") < 1.6
    assert lost("plain") > 2.5


def test_packed_rows_keep_their_samples_apart() -> None:
    data = samples([3, 5, 4])
    rows = [np.asarray([0, 1]), np.asarray([2])]
    batch = collate(data, rows, packed=True)  # type: ignore[arg-type]
    assert batch.position_ids is not None
    assert batch.input_ids[0].tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch.labels[0].tolist() == [IGNORED, 1, 1, IGNORED, 2, 2, 2, 2]
    assert batch.position_ids[1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (batch.valid, batch.tokens, batch.input_ids.size) == (9, 12, 16)


def test_a_batch_without_samples_weighs_nothing() -> None:
    batch = collate(samples([4]), [], packed=False)  # type: ignore[arg-type]
    assert (batch.valid, batch.tokens) == (0, 0)
    assert (batch.labels == IGNORED).all()


@given(SIZES, st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_an_evaluation_has_every_sample_once_and_as_many_passes_on_each_rank(
    sizes: list[int], world: int, each: int
) -> None:
    config = make(per_device_eval_batch_size=each, global_batch_size=8)
    ranks = ranks_of(samples([2]), config, world, held_out=samples(sizes))
    passes: list[list[Batch]] = [list(rank.evaluate()) for rank in ranks]
    assert len({len(batches) for batches in passes}) == 1
    ids = np.concatenate([b.input_ids.ravel() for batches in passes for b in batches])
    counted = Counter(int(i) for i in ids if i)
    assert counted == Counter({number + 1: size for number, size in enumerate(sizes)})


@given(st.lists(st.integers(1, 30), min_size=2, max_size=3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_nodes_with_samples_of_their_own_use_each_once(counts: list[int], local: int) -> None:
    world = local * len(counts)
    config = make(global_batch_size=2 * world, node_data="strided")
    pools = [samples([3] * count, first=1 + 100 * node) for node, count in enumerate(counts)]
    size = batch_size(config, world)
    ranks = [
        Batches(
            pools[rank // local],  # type: ignore[arg-type]
            None,
            config,
            size,
            rank=rank,
            pools=pools,
            ranks_of_pools=(local,) * len(counts),
        )
        for rank in range(world)
    ]
    steps = epoch(ranks, Position())
    whole = sum((seen(step) for step in steps), Counter())
    wanted = {1 + 100 * node + i: 3 for node, count in enumerate(counts) for i in range(count)}
    assert whole == Counter(wanted)
    for together in steps:
        assert len({len(step.micro_batches) for step in together}) == 1
        assert together[0].valid == sum(b.valid for s in together for b in s.micro_batches)


def test_nodes_with_samples_of_their_own_have_the_weights() -> None:
    config = make(global_batch_size=4, node_data="strided")
    pools = [mixed(([3] * 8, 0.5), ([4] * 3, 2.0), first=1 + 100 * node) for node in range(2)]
    size = batch_size(config, 2)
    ranks = [
        Batches(pools[rank], None, config, size, rank=rank, pools=pools, ranks_of_pools=(1, 1))  # type: ignore[arg-type]
        for rank in range(2)
    ]
    whole = sum((seen(step) for step in epoch(ranks, Position())), Counter())
    for node in range(2):
        first = 1 + 100 * node
        assert sorted(whole[first + i] for i in range(8)) == [0] * 4 + [3] * 4
        assert [whole[first + 8 + i] for i in range(3)] == [8] * 3
    assert [(share.samples, tokens) for share, tokens in ranks[0].datasets] == [(16, 48), (6, 24)]


def test_uneven_shares_of_nodes_with_samples_of_their_own_are_refused() -> None:
    config = make(global_batch_size=7, node_data="strided")
    pools = [samples([3]), samples([3])]
    with pytest.raises(ConfigError, match="multiple of 2 ranks"):
        Batches(
            pools[0],  # type: ignore[arg-type]
            None,
            config,
            batch_size(config, 2),
            rank=0,
            pools=pools,
            ranks_of_pools=(1, 1),
        )


def test_batches_are_made_ahead_and_a_fault_is_not_lost() -> None:
    data = samples([4] * 10)
    ranks = ranks_of(data, make(global_batch_size=4), 1)
    walk = ranks[0].train(Position())
    assert [next(walk).position for _ in range(4)] == [
        Position(consumed=4),
        Position(consumed=8),
        Position(epoch=1),
        Position(epoch=1, consumed=4),
    ]
    walk.close()  # type: ignore[attr-defined]

    class Broken(Samples):
        def sample(self, number: int) -> tuple[Ints, Ints]:
            raise OSError(f"sample {number} cannot be read")

    broken = ranks_of(Broken(data.lengths, 1, data.shares), make(global_batch_size=4), 1)
    with pytest.raises(OSError, match="cannot be read"):
        next(broken[0].train(Position()))
