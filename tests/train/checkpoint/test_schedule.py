"""When checkpoints are written, and that ranks whose clocks differ agree on it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.outcome import steps_of
from tests.train.world import World
from train.checkpoint.schedule import Schedule
from train.config.config import Config


def config(**keys: Any) -> Config:
    return Config(name_or_path="m", dataset_path="d", **keys)


def followed(schedule: Schedule, steps: int, each: int = 5) -> list[int]:
    """Return the steps that a checkpoint follows, of epochs of `each` steps."""
    return [
        step
        for step in range(1, steps + 1)
        if schedule.follows(step, finished_epochs=None if step % each else step // each)
    ]


def test_a_checkpoint_is_written_each_epoch_and_half_hour_where_nothing_is_said() -> None:
    now = [0.0]
    schedule = Schedule(config(), is_clock=True, clock=lambda: now[0])
    other = Schedule(config(), is_clock=False, clock=lambda: now[0])
    assert followed(schedule, 12) == [5, 10]
    now[0] = 1799.0
    assert schedule.vote() == 0
    now[0] = 1800.0
    assert schedule.vote() == 1
    assert other.vote() == 0, "only one clock counts"
    schedule.saved()
    assert schedule.vote() == 0
    assert config().save_every.words() == "a checkpoint every epoch or 30 minutes"


def test_what_is_said_replaces_that() -> None:
    assert followed(Schedule(config(save_steps=3), is_clock=True), 12) == [3, 6, 9, 12]
    assert followed(Schedule(config(save_epochs=2), is_clock=True), 12) == [10]
    late = iter([0.0, 1e9, 1e9, 2e9])
    by_steps = Schedule(config(save_steps=3), is_clock=True, clock=lambda: next(late))
    assert by_steps.vote() == 0
    never = Schedule(config(save_minutes=0), is_clock=True, clock=lambda: next(late))
    assert (followed(never, 12), never.vote()) == ([], 0)
    assert config(save_minutes=0).save_every.words() == "a checkpoint at the end"


def rank_one_is_slow(rank: int) -> None:
    """Let a minute pass between two looks at rank 0's clock, and none on rank 1."""
    from train.checkpoint import schedule

    ticks = iter(range(0, 10**6, 60 if rank == 0 else 1))
    defaults = schedule.Schedule.__init__.__kwdefaults__
    assert defaults
    defaults["clock"] = lambda: float(next(ticks))


@pytest.mark.torch
def test_ranks_agree_on_the_moment(world: World) -> None:
    # Rank 0 looks once a step, and once when a checkpoint was written.
    run = world.run(
        nodes=(2,), save_minutes=2.0, before=rank_one_is_slow,
        save_total_limit=9,
    )  # fmt: skip
    assert steps_of(run.output) == [2, 4, 6]
