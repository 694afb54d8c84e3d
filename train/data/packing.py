"""Join short samples to rows of full length, so that hardly any place of a row stays empty."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from train.data.token_store import Ints, index_dtype

VERSION = 2
"""Of the rows that a seed gives. A checkpoint within an epoch counts rows, so it needs the same."""


class Rows:
    """Rows of sample numbers; two arrays, since millions of small ones take many times the room."""

    def __init__(self, numbers: Ints, starts: Ints) -> None:
        self.numbers = numbers
        self.starts = starts
        """Where each row begins among the numbers, and the end of the last one."""

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several sets of samples, which are numbered set after set."""
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(len(part.numbers) for part in parts)]).tolist()
        kind = index_dtype(ends[-1])
        begins = list(zip(parts, ends, strict=False))
        numbers = [part.numbers.astype(kind) + begin for part, begin in begins]
        starts = [part.starts[:-1].astype(kind) + begin for part, begin in begins]
        starts.append(np.asarray(ends[-1:], kind))
        return cls(np.concatenate(numbers), np.concatenate(starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> Ints:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.numbers[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[row] for row in range(len(self)))


Pattern = tuple[int, tuple[tuple[int, int], ...]]
"""A number of rows that hold samples of the same lengths: each length, and how many a row has."""


def pack(lengths: Ints, seq_len: int, rng: np.random.Generator) -> Rows:
    """Return rows of sample numbers, each sample once, no row longer than seq_len.

    The lengths alone decide which ones share a row, so the work grows with the number of lengths
    and not of samples. Which sample of a length goes where is random.
    """
    counts = np.bincount(lengths)
    kind = index_dtype(len(lengths))
    narrow = np.uint16 if len(counts) <= 1 << 16 else np.uint32  # numpy sorts 16 bits by radix
    by_length: Ints = np.argsort(lengths.astype(narrow), kind="stable").astype(kind)
    begins = np.cumsum(counts) - counts
    present: list[int] = np.flatnonzero(counts).tolist()
    for length in present:
        rng.shuffle(by_length[begins[length] : begins[length] + counts[length]])
    patterns = best_fit({length: int(counts[length]) for length in present}, seq_len)
    widths = [sum(each for _, each in lengths) for _, lengths in patterns]
    numbers = np.empty_like(by_length)
    at = 0
    for (rows, lengths_of_row), width in zip(patterns, widths, strict=True):
        block = numbers[at : at + rows * width].reshape(rows, width)
        at += block.size
        column = 0
        for length, each in lengths_of_row:
            taken = by_length[begins[length] :][: rows * each]
            begins[length] += taken.size
            block[:, column : column + each] = taken.reshape(rows, each)
            column += each
    counts_of_rows = [rows for rows, _ in patterns]
    starts = np.zeros(sum(counts_of_rows) + 1, kind)
    np.cumsum(np.repeat(np.asarray(widths, kind), counts_of_rows), out=starts[1:])
    return Rows(numbers, starts)


def best_fit(counts: dict[int, int], seq_len: int) -> list[Pattern]:
    """Place the longest samples first, each in the fullest row that still has room for it."""
    patterns: list[Pattern] = []
    rooms: list[tuple[int, int]] = []
    """(places left, number of a pattern), sorted: the first with enough room is the fullest."""

    def add(rows: int, room: int, lengths: tuple[tuple[int, int], ...]) -> None:
        if rows:
            insort(rooms, (room, len(patterns)))
            patterns.append((rows, lengths))

    for length, count in sorted(counts.items(), reverse=True):
        left = count
        while left:
            found = bisect_left(rooms, (length, 0))
            if found == len(rooms):
                add(-(-left // (seq_len // length)), seq_len, ())
            room, number = rooms.pop(found)
            rows, lengths = patterns[number]
            each = room // length
            full = min(rows, left // each)
            add(full, room - each * length, (*lengths, (length, each)))
            left -= full * each
            rows -= full
            if rows and left:  # (fewer than a row has room for)
                add(1, room - left * length, (*lengths, (length, left)))
                rows, left = rows - 1, 0
            add(rows, room, lengths)
    return [patterns[number] for _, number in rooms]
