"""Several data sets as one: samples are numbered set after set, and each set has a weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from train.data.token_store import Ints

if TYPE_CHECKING:
    from train.data.dataset import TokenSet
    from train.data.images import Picture


QUADRATIC = 1 / 8192
"""Work of a row of length L is L + L*L*QUADRATIC: attention's share in a model of usual width."""
PIXEL = 1 / 4096
"""Work of a number of an image's pixels in tokens: a patch of 14x14 in three colors takes a frozen
tower what a seventh of a token takes the rest, in models of usual widths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a data set is of a mixture."""

    samples: int
    weight: float = 1.0
    """How many times an epoch has each of them, on average."""


@dataclass(kw_only=True, eq=False)
class Sizes:
    """What has to be known of samples to assign them to ranks."""

    lengths: Ints
    """Tokens of each sample."""
    targets: Ints
    """Tokens of each sample that the loss counts."""
    numbers: Ints
    """Numbers of each sample's pixels."""
    shares: tuple[Share, ...]
    """The data sets whose samples they are, in order."""

    def cost(self, row: Ints) -> float:
        """Return the work of a row."""
        lengths = self.lengths[row].astype(float)
        pixels = float(self.numbers[row].sum()) * PIXEL
        return float((lengths + lengths * lengths * QUADRATIC).sum()) + pixels

    def count_in(self, rows: list[Ints]) -> tuple[int, int]:
        """Return the labels that count in these rows, and all their tokens."""
        numbers = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return int(self.targets[numbers].sum()), int(self.lengths[numbers].sum())


class Mixture(Sizes):
    """Samples of one or more data sets."""

    def __init__(self, sets: Iterable[TokenSet], weights: Iterable[float] | None = None) -> None:
        """Take the sets in their order; without weights each counts once."""
        self.sets = tuple(sets)
        weights = weights or [1.0] * len(self.sets)
        super().__init__(
            lengths=_joined([samples.lengths for samples in self.sets]),
            targets=_joined([samples.targets for samples in self.sets]),
            numbers=_joined([samples.numbers for samples in self.sets], np.int64),
            shares=tuple(
                Share(samples=len(samples), weight=weight)
                for samples, weight in zip(self.sets, weights, strict=True)
            ),
        )
        self._ends = np.cumsum([len(samples) for samples in self.sets])

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sizes(self) -> Sizes:
        """Return what other nodes must know of it."""
        names = ("lengths", "targets", "numbers", "shares")
        return Sizes(**{name: getattr(self, name) for name in names})

    @property
    def largest(self) -> int:
        """Return the largest token in the files."""
        return max(samples.largest for samples in self.sets)

    def sample(self, number: int) -> tuple[Ints, Ints]:
        """Return the ids, and their labels (-100: masked)."""
        samples, within = self._of(number)
        return samples.sample(within)

    def pictures(self, number: int) -> list[Picture]:
        """Return the images of a sample."""
        samples, within = self._of(number)
        return samples.pictures(within)

    def _of(self, number: int) -> tuple[TokenSet, int]:
        which = int(np.searchsorted(self._ends, number, side="right"))
        samples = self.sets[which]
        return samples, number - int(self._ends[which]) + len(samples)


def by_share(sizes: Sizes) -> Iterator[tuple[Share, Ints]]:
    """Yield each data set's share with the lengths of its samples."""
    start = 0
    for share in sizes.shares:
        yield share, sizes.lengths[start : start + share.samples]
        start += share.samples


def tokens_by_share(sizes: Sizes) -> Iterator[tuple[Share, int]]:
    """Yield each data set's share with the tokens of its samples."""
    return ((share, int(lengths.sum())) for share, lengths in by_share(sizes))


def _joined(arrays: list[Ints], kind: type[np.signedinteger[Any]] = np.int32) -> Ints:
    """Return one array; a single one as it is, mapped from disk."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, dtype=kind)


def rows_an_epoch(count: int, weight: float) -> int:
    """Return how many rows an epoch has of a set of `count`."""
    return int(weight) * count + _more(count, weight)


def rows_of_epoch(count: int, weight: float, epoch: int, seeds: Sequence[int]) -> Ints:
    """Return which rows of a set an epoch has, a row of weight 2 twice.

    What is left of the weight takes the next rows of a fixed random order in each epoch, so that
    over the epochs every row comes as often as any other.
    """
    more = _more(count, weight)
    parts = [np.arange(count)] * int(weight)
    if more:
        turns = np.random.default_rng(seeds).permutation(count)
        parts.append(turns[(epoch * more + np.arange(more)) % count])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _more(count: int, weight: float) -> int:
    more = round(count * (weight - int(weight)))
    return more if weight >= 1 else min(count, max(1, more))
