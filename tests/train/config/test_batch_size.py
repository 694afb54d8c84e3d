"""The arithmetic of a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.config.batch_size import batch_size
from train.config.config import Config
from train.errors import ConfigError


def make(**keys: int) -> Config:
    return Config(name_or_path="m", dataset_path="d", **keys)  # type: ignore[arg-type]


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 2048))
def test_a_global_batch_is_kept_on_any_number_of_ranks(world: int, each: int, total: int) -> None:
    config = make(per_device_train_batch_size=each, global_batch_size=total)
    if total < world:
        with pytest.raises(ConfigError, match="1 a rank"):
            batch_size(config, world)
        return
    size = batch_size(config, world)
    assert size.total == total
    assert 0 <= size.empty < each * world
    assert -(-total // world) <= size.per_device * size.accumulation


def test_without_a_global_batch_it_is_the_product() -> None:
    size = batch_size(make(per_device_train_batch_size=8, gradient_accumulation_steps=2), 32)
    assert size.total == 512
    assert size.words() == "8 per device x 32 ranks x 2 accumulation = 512, global batch 512"


def test_numbers_that_cannot_all_be_true_are_refused_with_the_arithmetic() -> None:
    keys = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(ConfigError) as caught:
        batch_size(make(global_batch_size=128, **keys), 8)
    assert "expected 128" in str(caught.value)
    assert "2 x 8 ranks x gradient_accumulation_steps 4 = 64" in str(caught.value)
    assert "it becomes 8" in str(caught.value)


def test_ranks_that_share_rows_count_once() -> None:
    size = batch_size(make(per_device_train_batch_size=2, context_parallel=4), 8)
    assert (size.world_size, size.total) == (2, 4)
    assert size.words() == "2 per device x 2 groups of 4 ranks x 1 accumulation = 4, global batch 4"
    with pytest.raises(ConfigError, match="context_parallel: expected a divisor of 6 ranks"):
        batch_size(make(context_parallel=4), 6)
