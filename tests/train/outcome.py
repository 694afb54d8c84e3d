"""What a training has reached: its checkpoints, its weights, its losses."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.train.world import Training
from train.checkpoint import manifest

WITHIN = 1e-5


def steps_of(output: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(step for path in output.iterdir() if (step := manifest.step_of(path)) is not None)


def copied(written: Training, folder: Path) -> Path:
    """Return a copy of what a training has written, to be changed."""
    return shutil.copytree(written.output, folder / "copy")


def weights(training: Training) -> str:
    """Return a hash of what a training learned."""
    return hashlib.sha256(
        (training.output / "adapter/adapter_model.safetensors").read_bytes()
    ).hexdigest()


def close(one: dict[int, float], other: dict[int, float]) -> bool:
    """Tell whether two trainings had the same losses, within rounding."""
    return one.keys() == other.keys() and all(
        abs(one[step] - other[step]) <= WITHIN * one[step] for step in one
    )
