"""Which samples a rank sees, when, and in what shape: pure functions of seed, epoch and ranks.

A position is two integers, so a run continues exactly where it was, on any number of ranks: the
order is a permutation of (seed, epoch), a step takes the next `global batch` of it, and a rank's
share of that depends on nothing but the batch, the rank and how many there are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from train.config.batch_size import BatchSize
from train.config.config import Config
from train.data.collate import MULTIPLE, Batch, collate
from train.data.images import Vision
from train.data.mixture import (
    Mixture,
    Share,
    Sizes,
    by_share,
    rows_an_epoch,
    rows_of_epoch,
    tokens_by_share,
)
from train.data.packing import Rows, pack
from train.data.token_store import Ints, index_dtype
from train.errors import ConfigError, counted

AHEAD = 2
"""Steps made while the ranks compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training is in its data."""

    epoch: int = 0
    consumed: int = 0
    """Rows of this epoch that steps have taken."""
    stream: Mapping[str, Any] | None = None
    """Of streamed data where its next row is, as `data.stream.batches` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of one rank."""

    micro_batches: tuple[Batch, ...]
    """As many on every rank."""
    valid: int
    """Labels that count on all ranks together: what the sum of losses is divided by."""
    tokens: int
    """Tokens of all ranks together, padding not counted."""
    pairs: int = 0
    """Of all ranks together: if there are any, the sum of losses is divided by these."""
    position: Position
    """Where the data stands after this step."""
    epoch_end: bool


def order(seed: int, epoch: int, count: int, pool: int = 0) -> Ints:
    """Return the order of an epoch of `count` rows."""
    numbers: Ints = np.arange(count, dtype=index_dtype(count))
    np.random.default_rng([seed, epoch, pool]).shuffle(numbers)
    return numbers


def assign(costs: Sequence[float], world_size: int, each: int) -> list[list[int]]:
    """Assign the rows of a step to ranks; a rank's next `each` rows are its next micro-batch.

    Ranks meet in every micro-batch, so rows of like length go into the same one on all of them,
    and within it the heaviest rows to the rank that has had least so far.
    """
    assigned: list[list[int]] = [[] for _ in range(world_size)]
    work = [0.0] * world_size
    falling = sorted(range(len(costs)), key=lambda number: (-costs[number], number))
    for start in range(0, len(falling), world_size * each):
        together = falling[start : start + world_size * each]
        size = math.ceil(len(together) / world_size)
        groups = [together[at : at + size] for at in range(0, len(together), size)]
        lightest_first = sorted(range(world_size), key=lambda rank: (work[rank], rank))
        for rank, group in zip(lightest_first, groups, strict=False):
            assigned[rank] += group
            work[rank] += sum(costs[row] for row in group)
    return assigned


class Pool:
    """The samples that some ranks have in common: all of them, or those of one node."""

    def __init__(
        self,
        sizes: Sizes,
        config: Config,
        batch: int,
        number: int = 0,
        *,
        shuffled: bool = True,
    ) -> None:
        """Lay the samples out in rows; `batch` is how many rows of this pool a step takes."""
        self.batch = batch
        self._seed = config.seed
        self._number = number
        self._shuffled = shuffled
        self._sizes = sizes
        self.tokens = sum(share.weight * tokens for share, tokens in tokens_by_share(sizes))
        """Of an epoch, on average."""
        self._rows: Rows | None = None
        self._counts = [share.samples for share in sizes.shares]
        """Rows of each data set."""
        if config.batching == "packed":
            self._rows, self._counts = _packed(sizes, [config.seed, number], config.seq_len)
        self.count = sum(
            rows_an_epoch(count, share.weight)
            for count, share in zip(self._counts, sizes.shares, strict=True)
        )
        self._order: tuple[int, Ints] = (-1, np.zeros(0, np.int64))

    def take(self, epoch: int, start: int) -> list[Ints]:
        """Return the rows of a step; a row is the numbers of its samples."""
        if self._order[0] != epoch:
            self._order = (epoch, self._of_epoch(epoch))
        chosen = self._order[1][start : start + self.batch]
        if self._rows is None:
            return [chosen[i : i + 1] for i in range(len(chosen))]
        return [self._rows[row] for row in chosen]

    def longest(self, count: int) -> list[Ints]:
        """Return the rows that take most memory together in one forward pass."""
        if self._rows is None:
            numbers = np.argsort(-self._sizes.lengths.astype(np.int64), kind="stable")[:count]
            return [numbers[i : i + 1] for i in range(len(numbers))]
        lengths = self._sizes.lengths[self._rows.numbers].astype(np.int64)
        totals = np.add.reduceat(lengths, self._rows.starts[:-1].astype(np.int64))
        return [self._rows[int(row)] for row in np.argsort(-totals, kind="stable")[:count]]

    def _of_epoch(self, epoch: int) -> Ints:
        shuffled = np.arange(self.count)
        if self._shuffled:
            shuffled = order(self._seed, epoch, self.count, self._number)
        if all(share.weight == 1 for share in self._sizes.shares):
            return shuffled
        found: list[Ints] = []
        start = 0
        for number, (count, share) in enumerate(zip(self._counts, self._sizes.shares, strict=True)):
            seeds = (self._seed, self._number, number, 1)
            rows = rows_of_epoch(count, share.weight, epoch, seeds)
            found.append(rows.astype(index_dtype(sum(self._counts))) + start)
            start += count
        return np.concatenate(found)[shuffled]


def _packed(sizes: Sizes, seeds: list[int], seq_len: int) -> tuple[Rows, list[int]]:
    """Return packed rows, and how many each data set has: no row has samples of two."""
    rng = np.random.default_rng(seeds)
    found = [pack(lengths, seq_len, rng) for _, lengths in by_share(sizes)]
    return Rows.joined(found), [len(rows) for rows in found]


class Batches:
    """All batches of one rank, for training from any position and for evaluation."""

    def __init__(
        self,
        train: Mixture,
        evaluation: Mixture | None,
        config: Config,
        size: BatchSize,
        *,
        rank: int,
        vision: Vision | None = None,
        pools: Sequence[Sizes] = (),
        evaluation_pools: Sequence[Sizes] = (),
        ranks_of_pools: Sequence[int] = (),
    ) -> None:
        """Take the samples on this node.

        Where nodes have samples of their own (`node_data: strided`), the pools are the sizes of
        every node's, which the nodes tell each other once; ranks are counted node by node.
        """
        self._config = config
        self._size = size
        self._train_data, self._eval_data = train, evaluation
        self._vision = vision
        # The tower's weights are gathered and reduced by all ranks together; pairs never use them.
        some = vision and size.world_size > 1 and not config.in_pairs
        blank = vision.blank() if vision and some else None
        self._collate = partial(
            collate,
            pairs=config.in_pairs,
            vision=vision,
            blank=blank,
            multiple=MULTIPLE * config.context_parallel,
        )
        members = tuple(ranks_of_pools) or (size.world_size,)
        if len(members) > 1 and size.total % size.world_size:
            problem = (
                f"global_batch_size: expected a multiple of {size.world_size} ranks with "
                f"node_data strided, found {size.total}"
            )
            raise ConfigError(problem)
        each = size.total if len(members) == 1 else size.total // size.world_size
        self._train = tuple(pools) or (train,)
        self._packed = config.batching == "packed"
        self._pools = [
            Pool(sizes, config, each * (count if len(members) > 1 else 1), number)
            for number, (sizes, count) in enumerate(zip(self._train, members, strict=True))
        ]
        self._evaluation = tuple(evaluation_pools) or ((evaluation,) if evaluation else ())
        self._members = members
        firsts = np.cumsum((0, *members))
        self._pool = int(np.searchsorted(firsts, rank, side="right")) - 1
        self._local = rank - int(firsts[self._pool])

    @property
    def samples(self) -> tuple[int, int]:
        """How many samples of all nodes together are trained on, and how many evaluated on."""
        return (
            sum(len(sizes.lengths) for sizes in self._train),
            sum(len(sizes.lengths) for sizes in self._evaluation),
        )

    @property
    def described(self) -> str:
        """What is trained on."""
        return counted(self.samples[0], "sample")

    @property
    def datasets(self) -> list[tuple[Share, int]]:
        """Each data set's samples and tokens, on all nodes together."""
        rows = zip(*(tokens_by_share(sizes) for sizes in self._train), strict=True)
        return [
            (
                replace(row[0][0], samples=sum(share.samples for share, _ in row)),
                sum(tokens for _, tokens in row),
            )
            for row in rows
        ]

    @property
    def epoch_rows(self) -> int:
        """Rows that the steps of an epoch take, over all pools."""
        if len(self._pools) == 1:
            return self._pools[0].count
        steps = max(-(-pool.count // pool.batch) for pool in self._pools)
        return steps * self._size.total

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch from its beginning."""
        return -(-self.epoch_rows // self._size.total)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step takes over all ranks, on average over an epoch."""
        return sum(pool.tokens for pool in self._pools) / self.steps_per_epoch

    def step(self, position: Position) -> Step:
        """Return the step at a position."""
        taken, data, after = self._take(position)
        counted = [sizes.count_in(rows) for sizes, rows in taken]
        valid, tokens = (sum(column) for column in zip(*counted, strict=True))
        each = self._size.per_device
        assigned = [
            self._assigned(sizes, rows, members)
            for (sizes, rows), members in zip(taken, self._members, strict=True)
        ]
        count = max(-(-len(rows) // each) for pool in assigned for rows in pool)
        mine = assigned[self._pool][self._local]
        return Step(
            micro_batches=tuple(
                self._collate(data, mine[i * each : (i + 1) * each], packed=self._packed)
                for i in range(count)
            ),
            valid=valid,
            tokens=tokens,
            pairs=sum(len(rows) for _, rows in taken) if self._config.in_pairs else 0,
            position=after,
            epoch_end=after.epoch > position.epoch,
        )

    def _take(self, position: Position) -> tuple[list[tuple[Sizes, list[Ints]]], Mixture, Position]:
        """Return the rows of a step for each pool, what has their samples, what comes after."""
        taken = [
            (sizes, pool.take(position.epoch, position.consumed * pool.batch // self._size.total))
            for sizes, pool in zip(self._train, self._pools, strict=True)
        ]
        consumed = position.consumed + self._size.total
        if consumed >= self.epoch_rows:
            return taken, self._train_data, Position(epoch=position.epoch + 1)
        return taken, self._train_data, Position(epoch=position.epoch, consumed=consumed)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-batches."""
        return self._size.accumulation > 1

    def largest(self) -> Batch:
        """Return the largest micro-batch that this rank may meet."""
        rows = self._pools[self._pool].longest(self._size.per_device)
        return self._collate(self._train_data, rows, packed=self._packed)

    def train(self, position: Position) -> Iterator[Step]:
        """Yield the steps from a position on, without end; some are made ahead."""

        def following() -> Step:
            nonlocal position
            step = self.step(position)
            position = step.position
            return step

        with ThreadPoolExecutor(1, thread_name_prefix="batches") as maker:
            waiting: deque[Future[Step]] = deque()
            try:
                while True:
                    while len(waiting) < AHEAD:
                        waiting.append(maker.submit(following))
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def evaluate(self) -> Iterator[Batch]:
        """Yield this rank's batches of every evaluation sample once; as many on every rank."""
        each, data = self._config.eval_batch_size, self._eval_data
        if data is None:
            return
        count = max(
            math.ceil(math.ceil(len(sizes.lengths) / members) / each)
            for sizes, members in zip(self._evaluation, self._members, strict=True)
        )
        longest_first = np.argsort(-data.lengths, kind="stable")
        mine = longest_first[self._local :: self._members[self._pool]]
        for number in range(count):
            rows = mine[number * each : (number + 1) * each]
            yield self._collate(data, [rows[i : i + 1] for i in range(len(rows))], packed=False)

    def _assigned(self, sizes: Sizes, rows: list[Ints], members: int) -> list[list[Ints]]:
        if self._config.batching == "balanced":
            costs = [sizes.cost(row) for row in rows]
            chosen = assign(costs, members, self._size.per_device)
            return [[rows[i] for i in numbers] for numbers in chosen]
        return [rows[member::members] for member in range(members)]
