"""Join short samples to rows of full length, so that hardly any place of a row stays empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from train.data.token_store import Ints

WINDOW = 2048
"""Samples looked at together: more fill rows better, fewer leave the order more random."""


def pack(lengths: Ints, numbers: Ints, seq_len: int) -> list[Ints]:
    """Return rows of sample numbers, each sample once, no row longer than seq_len.

    Within a window of the order, the longest sample goes first, into the fullest row that
    still has room (best fit decreasing).
    """
    rows: list[Ints] = []
    for start in range(0, len(numbers), WINDOW):
        window = numbers[start : start + WINDOW]
        falling = window[np.argsort(-lengths[window], kind="stable")]
        rows += [np.asarray(row, np.int64) for row in _fill(lengths, falling, seq_len)]
    return rows


def _fill(lengths: Ints, falling: Ints, seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    """(places left, row), sorted: the first with enough room is the fullest."""
    for number in falling.tolist():
        length = int(lengths[number])
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
