"""A disk that fails ends no training by itself, and never looks like a good end."""

from __future__ import annotations

import errno
import shutil
import signal
import time
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import steps_of
from tests.train.world import World
from train import files
from train.checkpoint import manifest

pytestmark = pytest.mark.torch

SMALL: dict[str, Any] = {"max_steps": 4, "save_steps": 2}


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_seal(_rank: int) -> None:
    """Let no checkpoint be sealed."""
    patch.object(manifest, "seal", full).start()


def no_shards(rank: int) -> None:
    """Let rank 1 write no shards."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    if rank == 1:
        patch.object(FileSystemWriter, "write_data", full).start()


def no_shards_once(rank: int) -> None:
    """Let rank 1 fail to write its shards the first time."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    real, tries = FileSystemWriter.write_data, iter("x")

    def write(self: Any, *args: Any) -> Any:
        return full() if rank == 1 and next(tries, None) else real(self, *args)

    patch.object(FileSystemWriter, "write_data", write).start()


def no_removal(_rank: int) -> None:
    """Let old checkpoints not be removed, as NFS does while somebody reads them."""
    real = shutil.rmtree

    def remove(path: Any, *args: Any, **how: Any) -> None:
        if str(path).endswith((".tmp-pruned", ".tmp-left")):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        real(path, *args, **how)

    patch.object(shutil, "rmtree", remove).start()


def slow_removal(_rank: int) -> None:
    """Let removing a checkpoint take longer than ranks wait for each other."""
    real = shutil.rmtree

    def remove(path: Any, *args: Any, **how: Any) -> None:
        if str(path).endswith(".tmp-pruned"):
            time.sleep(5)
        real(path, *args, **how)

    patch.object(shutil, "rmtree", remove).start()


def no_reading(rank: int) -> None:
    """Let rank 1 read no shards."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    if rank == 1:
        patch.object(FileSystemReader, "read_data", full).start()


def no_export(_rank: int) -> None:
    """Let nothing be written where people look."""
    from train.model import export

    real = export.export

    def fail(named: Any, folder: Any, *args: Any, **how: Any) -> Any:
        return full() if folder.name.startswith("adapter") else real(named, folder, *args, **how)

    patch.object(export, "export", fail).start()


def no_rename(_rank: int) -> None:
    """Let what stands in the place of the records stay there."""
    patch.object(manifest, "set_aside", lambda *_: []).start()


def half_an_export(_rank: int) -> None:
    """Let the disk be full after an export's first file."""
    from train.model import export

    real = files.write_durably

    def write(path: Any, content: Any) -> None:
        if path.name == export.SHAPE and path.parent.name.startswith("adapter"):
            full()
        real(path, content)

    patch.object(export, "write_durably", write).start()


def slow_seal(_rank: int) -> None:
    """Let a checkpoint take longer than a step."""
    real = manifest.seal

    def seal(*args: Any) -> None:
        time.sleep(2)
        real(*args)

    patch.object(manifest, "seal", seal).start()


def interrupted(_rank: int) -> None:
    """Be interrupted at the first step, as by a second Ctrl-C."""
    from train.trainer import Trainer

    def update(*_: Any) -> Any:
        raise KeyboardInterrupt

    patch.object(Trainer, "update", update).start()


@pytest.mark.parametrize(
    "async_save",
    [pytest.param(False, id="sync", marks=pytest.mark.soak), pytest.param(True, id="async")],
)
def test_a_stop_whose_checkpoint_cannot_be_written_is_a_failure(
    world: World, *, async_save: bool
) -> None:
    how: dict[str, Any] = {"max_steps": 400, "save_steps": 1, "async_save": async_save}
    run = world.start(nodes=(2,), before=no_seal, **how)
    run.wait_for("Step 2/")  # after one that could not be written either
    run.send(signal.SIGTERM)
    assert run.wait() == [4, 4]
    assert "could not be written" in run.status()["reason"]
    assert run.status()["state"] == "failed"
    assert not steps_of(run.output)


def test_a_last_checkpoint_that_cannot_be_written_is_a_failure(world: World) -> None:
    run = world.start(nodes=(2,), before=no_shards, **SMALL)
    assert run.wait() == [4, 4]
    assert run.status()["state"] == "failed"
    assert "No space left on device" in run.said()
    assert "Step 4/4" in run.said(), "the training went on"


def test_shards_that_cannot_be_written_end_no_training(world: World) -> None:
    run = world.run(nodes=(2,), before=no_shards_once, **SMALL)
    assert "checkpoint not written: rank 1 on " in run.said()
    assert steps_of(run.output) == [4]


def test_a_checkpoint_that_cannot_be_removed_is_told_and_that_is_all(world: World) -> None:
    left = world.folder / "output/step-000001.tmp-left"
    left.mkdir(parents=True)
    how = SMALL | {"save_steps": 1, "save_total_limit": 2}
    run = world.run(before=no_removal, output_dir=str(left.parent), **how)
    assert steps_of(run.output) == [3, 4]
    assert run.said().count("could not be removed") == 3
    assert "not written" not in run.said()


def test_no_rank_waits_while_old_checkpoints_are_removed(world: World) -> None:
    how = SMALL | {"save_steps": 1, "save_total_limit": 2, "step_timeout": 3}
    run = world.run(nodes=(2,), before=slow_removal, async_save=False, **how)
    assert steps_of(run.output) == [3, 4]
    assert not list(run.output.glob("*.tmp-*")), "the program ends after the last removal"


def test_a_checkpoint_that_one_rank_cannot_read_is_an_error_of_all(world: World) -> None:
    first = world.run(nodes=(2,), **SMALL)
    again = world.start(
        nodes=(2,), before=no_reading, output_dir=str(first.output), max_steps=6,
        resume_from_checkpoint="latest",
    )  # fmt: skip
    assert again.wait() == [4, 4]
    assert "cannot be loaded: rank 1 on " in again.said()


def test_an_export_that_fails_ends_all_ranks_alike(world: World) -> None:
    run = world.start(nodes=(2,), before=no_export, **SMALL)
    assert run.wait() == [4, 4]
    assert "could not be exported" in run.status()["reason"]
    assert steps_of(run.output) == [2, 4]


def test_an_interrupted_run_does_not_look_like_a_running_one(world: World) -> None:
    run = world.start(before=interrupted, **SMALL)
    assert run.wait() != [0]
    assert run.status()["state"] == "failed"


def test_numbers_that_cannot_be_written_end_no_training(world: World) -> None:
    output = world.folder / "output"
    for name in ("metrics.jsonl", "status.json"):
        (output / name).mkdir(parents=True)  # as good as a disk that refuses
        (output / name / "kept").touch()
    run = world.run(nodes=(2,), before=no_rename, output_dir=str(output), **SMALL)
    assert run.said().count("metrics.jsonl: cannot be written") == 1
    assert "status.json: cannot be written" in run.said()
    assert steps_of(output) == [2, 4]


def test_an_export_that_fails_leaves_the_one_before(world: World) -> None:
    first = world.run(**SMALL)
    before = (first.output / "adapter/adapter_model.safetensors").read_bytes()
    for name in (".probe-1", ".status.json.1"):
        (first.output / name).touch()
    how = SMALL | {"max_steps": 6, "resume_from_checkpoint": "latest"}
    again = world.start(before=half_an_export, output_dir=str(first.output), **how)
    assert again.wait() == [4]
    assert (first.output / "adapter/adapter_model.safetensors").read_bytes() == before
    assert not list(first.output.glob(".*"))


def test_a_loss_that_is_not_a_number_waits_for_the_checkpoint_before(world: World) -> None:
    how = SMALL | {"max_steps": 40, "save_steps": 1, "learning_rate": 1e30, "max_grad_norm": 0}
    run = world.start(nodes=(2,), before=slow_seal, async_save=True, **how)
    assert run.wait() == [5, 5]
    assert steps_of(run.output)
    assert not list(run.output.glob("*.tmp-*"))
