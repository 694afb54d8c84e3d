"""Packing: nothing lost, nothing twice, nothing too long, hardly anything empty."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from train.data.packing import pack


@given(st.lists(st.integers(1, 64), max_size=200), st.randoms(use_true_random=False))
def test_every_sample_is_in_one_row_that_has_room(sizes: list[int], random: object) -> None:
    lengths = np.asarray(sizes, np.int64)
    order = np.arange(len(sizes))
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = pack(lengths, order, 64)
    assert sorted(int(i) for row in rows for i in row) == list(range(len(sizes)))
    assert all(lengths[row].sum() <= 64 for row in rows)


def test_rows_are_nearly_full() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 400, 3000)
    rows = pack(lengths, rng.permutation(3000), 1024)
    assert lengths.sum() / (len(rows) * 1024) > 0.97
