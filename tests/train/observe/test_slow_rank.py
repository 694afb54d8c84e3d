"""A training with a slowed rank names it, its host and its cause; an even one names nobody."""

from __future__ import annotations

import functools
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.train.world import World
from train.observe.metrics import WINDOW

pytestmark = pytest.mark.torch

EVEN = {"compute": 0.04, "data": 0.1}
"""Seconds that each rank sleeps in each pass: next to them a busy machine's unevenness is small."""
SLOW = {"compute": 0.12, "data": 0.3}
"""The slowed rank's; data is made ahead, so it takes more to be felt."""
STEPS = 2 * WINDOW


def slow_down(where: str, slowed: int | None, rank: int) -> None:
    """Make a rank slow, as a throttled GPU or a slow disk would; runs in the rank's process."""
    seconds = (SLOW if rank == slowed else EVEN)[where]
    import train.data.batches
    import train.model.model

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds)
            return function(*args, **kwargs)

        return wrapper

    if where == "compute":
        train.model.model.Model.loss = slowly(train.model.model.Model.loss)  # type: ignore[method-assign]
    else:
        batches: Any = train.data.batches
        batches.collate = slowly(batches.collate)


def run(world: World, **how: Any) -> str:
    how |= {"max_steps": STEPS, "per_device_train_batch_size": 2}
    return world.run(**how).said()


@pytest.mark.parametrize(
    ("where", "parallel"),
    [
        pytest.param("compute", "fsdp", marks=pytest.mark.soak),
        pytest.param("data", "fsdp", marks=pytest.mark.soak),
        ("compute", "ddp"),
    ],
)
def test_a_slowed_rank_is_named_with_its_host_and_cause(
    world: World, where: str, parallel: str
) -> None:
    said = run(world, nodes=(3,), parallel=parallel, before=functools.partial(slow_down, where, 1))
    named = re.findall(
        r"^Slow: rank (\d) on (\S+) takes ([\d.]+)x the median \((\w+)\)", said, re.MULTILINE
    )
    assert named, said
    assert {(rank, host, cause) for rank, host, _, cause in named} == {
        ("1", socket.gethostname(), where)
    }


def test_where_nobody_is_slow_nobody_is_named(world: World) -> None:
    even = functools.partial(slow_down, "compute", None)
    assert "Slow:" not in run(world, nodes=(3,), before=even)
