"""Packing: nothing lost, nothing twice, nothing too long, hardly anything empty."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from train.data.packing import pack


@given(st.lists(st.integers(1, 64), max_size=200), st.integers(0, 9))
def test_every_sample_is_in_one_row_that_has_room(sizes: list[int], seed: int) -> None:
    lengths = np.asarray(sizes, np.int64)
    rows = pack(lengths, 64, np.random.default_rng(seed))
    assert sorted(int(i) for row in rows for i in row) == list(range(len(sizes)))
    assert all(lengths[row].sum() <= 64 for row in rows)
    again = pack(lengths, 64, np.random.default_rng(seed))
    assert [row.tolist() for row in rows] == [row.tolist() for row in again]


@given(st.lists(st.integers(1, 64), max_size=200))
def test_each_sample_is_in_the_fullest_row_that_had_room(sizes: list[int]) -> None:
    """The rows have the lengths that best fit decreasing gives them, sample by sample."""
    slowly: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in slowly if sum(row) + size <= 64]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            slowly.append([size])
    lengths = np.asarray(sizes, np.int64)
    packed = [sorted(lengths[row]) for row in pack(lengths, 64, np.random.default_rng(0))]
    assert sorted(map(sum, packed)) == sorted(map(sum, slowly))


def test_which_sample_of_a_length_goes_where_depends_on_the_seed() -> None:
    lengths = np.full(100, 10)
    one, two = (pack(lengths, 64, np.random.default_rng(seed)) for seed in (1, 2))
    assert [row.tolist() for row in one] != [row.tolist() for row in two]


def test_rows_are_nearly_full() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 400, 3000)
    rows = pack(lengths, 1024, rng)
    assert lengths.sum() / (len(rows) * 1024) > 0.99


def test_a_million_samples_are_packed_in_a_moment() -> None:
    """Each rank packs for itself, which took 2.5 s for as many while it went through samples."""
    lengths = np.random.default_rng(0).lognormal(5.5, 0.9, 1_000_000).clip(8, 2048).astype(int)
    began = time.process_time()
    rows = pack(lengths, 2048, np.random.default_rng(0))
    assert time.process_time() - began < 1.0
    assert lengths.sum() / (len(rows) * 2048) > 0.999
