"""A disk that is really full: what was trained is exported, or waits in memory for room."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.small_disk import small_disk
from tests.train.outcome import steps_of
from tests.train.world import Training, World
from train.files import measure

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # read in this process
]

MIB = 1 << 20
WIDE: dict[str, Any] = {
    # A checkpoint takes 6 MiB: 0.4 million weights and their moments, and the adapter again.
    "lora_r": 400, "max_steps": 4, "save_steps": 2,
}  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB; takes root."""
    with small_disk(tmp_path / "disk", 64) as folder:
        yield folder


def fill(disk: Path, free: float) -> Path:
    """Leave so many MiB free, never more meanwhile; return the file to remove for more."""
    filler = disk / "filler"
    about = os.statvfs(disk)
    with filler.open("ab") as file:
        held = file.tell()
        size = held + about.f_bavail * about.f_frsize - int(free * MIB)
        file.truncate(min(held, size))
        file.write(bytes(max(0, size - held)))
    return filler


NODES = [pytest.param((1,), marks=pytest.mark.soak), (2,)]


def quick(_rank: int) -> None:
    """Look at the disk often."""
    from train.checkpoint import room

    room.LOOK = 0.2


def impatient(_rank: int) -> None:
    """Wait for room for a second."""
    from train.checkpoint import room

    room.LOOK, room.PATIENCE = 0.2, 1.0


def same_weights(one: Path, other: Path) -> bool:
    return measure(one) == measure(other)


@pytest.mark.parametrize("nodes", NODES)
def test_an_adapter_is_exported_where_a_checkpoint_has_no_room(
    world: World, disk: Path, nodes: tuple[int, ...]
) -> None:
    fill(disk, 4)
    run = world.start(**WIDE, nodes=nodes, output_dir=str(disk / "output"))
    assert set(run.wait()) == {4}, run.said()
    assert not steps_of(run.output)
    assert "checkpoint not written: rank 0 on " in run.said()
    assert "no space left in " in run.said()
    assert "more are needed" in run.said()
    adapter = run.output / "adapter"
    assert run.status()["state"] == "failed"
    lost = f"the last checkpoint could not be written; step 4 is in {adapter}"
    assert run.status()["reason"] == f"CheckpointError: {lost}"
    assert "Traceback" not in run.said()
    assert json.loads((adapter / "metadata.json").read_text())["step"] == 4
    whole = world.run(**WIDE, nodes=nodes)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert same_weights(adapter / name, whole.output / "adapter" / name)


@pytest.mark.parametrize("nodes", NODES)
def test_a_full_model_is_exported_from_memory_as_from_a_checkpoint(
    world: World, disk: Path, nodes: tuple[int, ...]
) -> None:
    fill(disk, 0.6)
    how: dict[str, Any] = WIDE | {"method": "full", "nodes": nodes, "save_steps": None}
    run = world.start(**how, before=quick, output_dir=str(disk / "output"))
    assert set(run.wait()) == {4}, run.said()
    assert "step 4 is in " in run.said()
    whole = world.run(**how)
    name = "model/model.safetensors"
    assert same_weights(run.output / name, whole.output / name)


def waiting(world: World, disk: Path, before: Any, **how: Any) -> Training:
    """Return a training that has no room for anything at its end."""
    fill(disk, 0.3)
    run = world.start(**WIDE | how, before=before, output_dir=str(disk / "output"))
    run.wait_for("waiting up to ")
    return run


@pytest.mark.parametrize("nodes", NODES)
def test_what_is_in_memory_only_waits_for_room(
    world: World, disk: Path, nodes: tuple[int, ...]
) -> None:
    run = waiting(world, disk, quick, nodes=nodes)
    line = f"MiB of room in {run.output}: step 4 is in memory only; Ctrl-C gives it up\n"
    assert line in run.said()
    assert "step 4 is in memory only" in run.status()["reason"]
    (disk / "filler").unlink()
    assert set(run.wait()) == {0}, run.said()
    assert (run.status()["state"], run.status()["step"]) == ("done", 4)
    assert steps_of(run.output) == [4]
    assert (run.output / "adapter/adapter_model.safetensors").exists()


def test_room_for_the_adapter_alone_is_used(world: World, disk: Path) -> None:
    run = waiting(world, disk, quick)
    fill(disk, 4)
    assert run.wait() == [4]
    assert f"step 4 is in {run.output}/adapter" in run.status()["reason"]
    assert (run.output / "adapter/adapter_model.safetensors").exists()


def test_a_wait_for_room_ends_in_time_or_by_ctrl_c(world: World, disk: Path) -> None:
    run = waiting(world, disk, impatient)
    assert run.wait() == [4]
    lost = "the last checkpoint could not be written, and what was trained could not be exported"
    assert lost in run.status()["reason"]
    (disk / "filler").unlink()
    run = waiting(world, disk, quick)
    run.send(signal.SIGINT)
    assert run.wait() == [4]
    assert "SIGINT: giving up the wait for room; Ctrl-C again stops at once" in run.said()
    assert lost in run.status()["reason"]
    assert not list(run.output.glob("*.tmp-*"))


def test_a_stopped_run_waits_for_room_too(world: World, disk: Path) -> None:
    fill(disk, 0.3)
    how: dict[str, Any] = WIDE | {"max_steps": 400, "save_steps": None}
    run = world.start(**how, before=quick, output_dir=str(disk / "output"))
    run.wait_for("Step 2/")
    run.send(signal.SIGINT)
    run.wait_for("waiting up to ")
    (disk / "filler").unlink()
    assert run.wait() == [0], run.said()
    assert run.status()["state"] == "preempted"
    assert steps_of(run.output) == [run.status()["step"]]


def test_a_save_that_failed_is_tried_at_the_next_step_that_saves(world: World, disk: Path) -> None:
    filler = fill(disk, 4)
    how: dict[str, Any] = WIDE | {"max_steps": 400, "save_total_limit": 1}
    run = world.start(**how, output_dir=str(disk / "output"))
    run.wait_for("no space left in ")
    filler.unlink()
    run.wait_for("Step 8/")
    run.send(signal.SIGTERM)
    assert run.wait() == [0], run.said()
    assert steps_of(run.output)[-1] == run.status()["step"]
