"""How many evaluation samples are also trained on: equal tokens, wherever they are from.

A sample is compared by its length and some of its tokens, for all samples at once; only those that
agree with one to evaluate on in these are read whole. So it takes little time and memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from train.data.token_store import Ints

if TYPE_CHECKING:
    from train.data.dataset import TokenSet

TOGETHER = 1 << 18
"""Samples sketched in one go."""
PLACES = 8
"""Tokens of a sample that are in its sketch."""
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Mixes the tokens of a sketch."""

Sketches = npt.NDArray[np.uint64]


def count(held_out: Iterable[TokenSet], trained: Iterable[TokenSet]) -> int:
    """Return how many samples of some sets equal one of others."""
    wanted = [(samples, *part) for samples in held_out for part in _sketched(samples)]
    if not wanted:
        return 0
    sketches = np.unique(np.concatenate([sketches for *_, sketches in wanted]))
    seen: set[bytes] = set()
    seen_sketches: list[Sketches] = []
    for samples in trained:
        for first, found in _sketched(samples):
            alike = np.flatnonzero(np.isin(found, sketches))
            seen_sketches.append(found[alike])
            seen.update(_digest(samples, first + int(number)) for number in alike)
    if not seen:
        return 0
    both = np.unique(np.concatenate(seen_sketches))
    return sum(
        _digest(samples, first + int(number)) in seen
        for samples, first, found in wanted
        for number in np.flatnonzero(np.isin(found, both))
    )


def _sketched(samples: TokenSet) -> Iterator[tuple[int, Sketches]]:
    """Yield the number of a sample, and the sketches of it and of some that follow."""
    ends = np.cumsum([part.samples for part in samples.parts])
    for first in range(0, len(samples), TOGETHER):
        numbers = slice(first, first + TOGETHER)
        rows: Ints = (
            np.arange(len(samples.index))[numbers]
            if samples.chosen is None
            else samples.chosen[numbers]
        )
        of_part = np.searchsorted(ends, rows, side="right")
        sketches = np.zeros(len(rows), np.uint64)
        for number in np.unique(of_part):
            mine = of_part == number
            index = samples.index[rows[mine]]
            sketches[mine] = _sketch(samples.parts[number].tokens, index[:, 3], index[:, 1])
        yield first, sketches


def _sketch(tokens: npt.NDArray[Any], offsets: Ints, lengths: Ints) -> Sketches:
    sketches = lengths.astype(np.uint64)
    for place in range(PLACES):
        at = offsets + (lengths - 1) * place // (PLACES - 1)
        sketches = sketches * ODD + tokens[at].astype(np.uint64)
        sketches ^= sketches >> np.uint64(29)
    return sketches


def _digest(samples: TokenSet, number: int) -> bytes:
    ids, _ = samples.sample(number)
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
