"""Several data sets as one: numbered set after set, each seen as often as its weight says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.mixture import rows_an_epoch, rows_of_epoch


@given(st.integers(0, 50), st.floats(0.01, 5), st.integers(1, 30))
def test_rows_come_as_often_as_any_other_of_their_set(
    count: int, weight: float, epochs: int
) -> None:
    times: Counter[int] = Counter()
    for epoch in range(epochs):
        rows = rows_of_epoch(count, weight, epoch, (7, 0, 0, 1))
        assert len(rows) == rows_an_epoch(count, weight)
        times.update(rows.tolist())
        once = Counter(rows.tolist())
        assert all(once[row] - int(weight) in {0, 1} for row in range(count))
    assert set(times) <= set(range(count))
    assert max(times.values(), default=0) - min((times[i] for i in range(count)), default=0) <= 1


def test_a_small_weight_leaves_a_row_and_an_empty_set_none() -> None:
    assert rows_an_epoch(10, 0.001) == 1
    assert rows_an_epoch(10, 1.001) == 10
    assert rows_an_epoch(0, 0.5) == 0


@pytest.mark.parametrize("seeds", [(1, 0, 0, 1), (0, 0, 1, 1)])
def test_a_part_depends_on_the_seed(seeds: tuple[int, ...]) -> None:
    chosen = rows_of_epoch(100, 0.5, 0, (0, 0, 0, 1))
    assert not np.array_equal(chosen, rows_of_epoch(100, 0.5, 0, seeds))
    assert np.array_equal(chosen, rows_of_epoch(100, 0.5, 0, (0, 0, 0, 1)))
