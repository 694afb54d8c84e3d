"""Garbage is collected on all ranks in the same steps, and does not grow."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.world import World
from train.lifecycle import garbage

EVERY = 4


class Litter:
    """Something that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


def litters(rank: int) -> None:
    """Drop some litter in each step, and write down what is collected when, and what is left."""
    from train.trainer import Trainer

    alive: weakref.WeakSet[Litter] = weakref.WeakSet()
    seen: list[Any] = []
    plainly = Trainer.update
    garbage.EVERY = EVERY

    def update(trainer: Trainer, number: int, step: Any) -> Any:
        for _ in range(2000):  # more than Python itself would leave uncollected
            alive.add(Litter())
        found = plainly(trainer, number, step)
        seen.append(["step", number, len(alive)])
        return found

    def collected(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and seen:  # from the first step on
            seen.append(["collected", about["generation"]])
            Path(f"../seen-{rank}").write_text(json.dumps(seen))

    patch.object(Trainer, "update", update).start()
    gc.callbacks.append(collected)


@pytest.mark.torch
def test_all_ranks_collect_in_the_same_steps_and_nothing_grows(world: World) -> None:
    run = world.run(
        nodes=(2,), before=litters, max_steps=12, eval_steps=6, save_steps=100, save_total_limit=1,
        per_device_eval_batch_size=2,
    )  # fmt: skip
    seen, of_the_other = (json.loads((run.folder.parent / f"seen-{n}").read_text()) for n in (0, 1))
    assert seen == of_the_other
    step, collected = 0, []
    for what, number, *_ in seen:
        step = number if what == "step" else step
        collected += [(step, number)] if what == "collected" and step < 12 else []
    assert collected == [(4, 1), (6, 2), (6, 1), (8, 1)], "6: before and within the evaluation"
    assert max(each[2] for each in seen if each[0] == "step") == EVERY * 2000


@pytest.mark.parametrize("was_enabled", [True, False])
def test_what_python_does_afterwards_is_what_it_did_before(*, was_enabled: bool) -> None:
    before = gc.isenabled()  # another test of this process may have turned it off
    (gc.enable if was_enabled else gc.disable)()
    try:
        with garbage.collected_by_steps():
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()
