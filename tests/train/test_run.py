"""What a training sets up before anything else."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.train.world import context
from train.config.config import Config

pytestmark = pytest.mark.torch

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def settings(given: dict[str, str], found: Path) -> None:
    """Write what torch allocates by after a training has set it up."""
    import torch

    from train.run import set_up_libraries

    for name in NAMES:
        os.environ.pop(name, None)
    os.environ |= given
    set_up_libraries(Config(name_or_path="model", dataset_path="data"))
    found.write_text(torch._C._accelerator_getAllocatorSettings())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "expandable_segments:True"),
        *(({name: "max_split_size_mb:64"}, "max_split_size_mb:64") for name in NAMES),
    ],
)
def test_segments_grow_unless_the_user_sets_something_else(
    given: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    process = context().Process(target=settings, args=(given, tmp_path / "found"), daemon=True)
    process.start()
    process.join(60)
    assert (tmp_path / "found").read_text() == wanted


@pytest.mark.parametrize("epochs", [0.1, 0.5, 1.0, 1.1, 1.5, 2.0, 3.3])
def test_steps_of_part_of_an_epoch_are_those_of_the_trainer(epochs: float) -> None:
    from train.checkpoint.save import Progress
    from train.config.batch_size import batch_size
    from train.data.batches import Position
    from train.run import count_steps

    config = Config(
        name_or_path="m", dataset_path="d", num_train_epochs=epochs, global_batch_size=12
    )
    size = batch_size(config, 1)
    batches: Any = SimpleNamespace(epoch_rows=58, steps_per_epoch=5)
    wanted = math.ceil(epochs * 5)  # transformers' Trainer.set_initial_training_values
    for done in range(wanted + 1):
        position = Position(epoch=done // 5, consumed=done % 5 * 12)
        progress = Progress(step=done, position=position)
        assert count_steps(config, batches, size, progress) == wanted
