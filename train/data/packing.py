"""Join short samples to rows of full length, so that hardly any place of a row stays empty."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from train.data.token_store import Ints

WINDOW = 2048
"""Samples looked at together: more fill rows better, fewer leave the order more random."""


class Rows:
    """Rows of sample numbers; two arrays, since millions of small ones take many times the room."""

    def __init__(self, numbers: Ints, starts: Ints) -> None:
        self._numbers = numbers
        self._starts = starts
        """Where each row begins among the numbers, and the end of the last one."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Ints:
        """Return the samples of a row."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._numbers[self._starts[row] : self._starts[row + 1]]

    def __iter__(self) -> Iterator[Ints]:
        """Yield the rows."""
        return (self[row] for row in range(len(self)))


def pack(lengths: Ints, numbers: Ints, seq_len: int) -> Rows:
    """Return rows of sample numbers, each sample once, no row longer than seq_len.

    Within a window of the order, the longest sample goes first, into the fullest row that
    still has room (best fit decreasing).
    """
    packed, sizes = array("q"), array("q", [0])
    for start in range(0, len(numbers), WINDOW):
        window = numbers[start : start + WINDOW]
        falling = window[np.argsort(-lengths[window], kind="stable")]
        for row in _fill(lengths[falling].tolist(), falling.tolist(), seq_len):
            packed.extend(row)
            sizes.append(len(row))
    starts = np.cumsum(np.frombuffer(sizes, np.int64))
    return Rows(np.frombuffer(packed, np.int64) if packed else np.zeros(0, np.int64), starts)


def _fill(lengths: list[int], falling: list[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    """(places left, row), sorted: the first with enough room is the fullest."""
    for length, number in zip(lengths, falling, strict=True):
        found = bisect_left(room, (length, 0))
        if found == len(room):
            rows.append([number])
            left, row = seq_len - length, len(rows) - 1
        else:
            left, row = room.pop(found)
            rows[row].append(number)
            left -= length
        insort(room, (left, row))
    return rows
