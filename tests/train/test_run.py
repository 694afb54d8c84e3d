"""What a training sets up before anything else."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import os
from pathlib import Path

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
