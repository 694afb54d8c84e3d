"""Ranks as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.logs.ranks import fold_ranks, name_ranks, parse_ranks


@given(st.frozensets(st.integers(0, 50), min_size=1))
def test_folding_and_parsing_are_inverse(ranks: frozenset[int]) -> None:
    assert parse_ranks(fold_ranks(ranks)) == ranks


def test_runs_are_folded() -> None:
    assert fold_ranks([7, 0, 1, 2, 9, 8]) == "0-2,7-9"
    assert fold_ranks([]) == ""


@pytest.mark.parametrize("bad", ["", "a", "1-", "-1", "3-1", "1,,2", "1;2", "0-99999999999"])
def test_bad_ranks_are_named(bad: str) -> None:
    with pytest.raises(ValueError, match="expected ranks"):
        parse_ranks(bad)


def test_one_rank_is_named_as_one() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 1, 2, 5]) == "ranks 0-2,5"
