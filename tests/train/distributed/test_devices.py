"""Ranks that cannot train together are named before any of them waits for NCCL."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.world import World
from train.distributed.env import RankEnv
from train.errors import LauncherEnvError

pytestmark = pytest.mark.torch


def test_equal_kinds_and_gpus_of_their_own_are_good() -> None:
    from train.distributed.devices import Device, conflict

    assert not conflict([Device("a", "cpu", ""), Device("a", "cpu", "")])
    assert not conflict([Device("a", "cuda", "GPU-1"), Device("b", "cuda", "GPU-2")])


def test_a_node_without_its_gpu_is_named() -> None:
    from train.distributed.devices import Device, conflict

    rows = [Device("a", "cuda", f"GPU-{n}") for n in range(2)] + [Device("b", "cpu", "")]
    said = conflict(rows)
    assert "expected every rank on the same kind, cuda here, found rank 2 on b on cpu" in said
    assert "hint: nvidia-smi on b" in said


def test_two_ranks_on_one_gpu_are_named() -> None:
    from train.distributed.devices import Device, conflict

    rows = [
        Device("a", "cuda", "GPU-1"),
        Device("b", "cuda", "GPU-2"),
        Device("a", "cuda", "GPU-1"),
    ]
    assert "found rank 0 and rank 2 on a on the same one (GPU-1)" in conflict(rows)


@pytest.mark.parametrize(("local", "gpus", "wanted"), [(0, 1, 0), (1, 1, 0), (1, 2, 1), (7, 8, 7)])
def test_a_gpu_is_chosen_by_place_or_is_the_only_one(local: int, gpus: int, wanted: int) -> None:
    from train.distributed import devices

    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: gpus),
        patch("torch.cuda.set_device") as chosen,
    ):
        device = devices.choose(RankEnv(local_rank=local, local_world_size=8))
    assert str(device) == f"cuda:{wanted}"
    chosen.assert_called_once_with(device)


def test_more_processes_than_gpus_are_refused() -> None:
    from train.distributed import devices

    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: 2),
        pytest.raises(LauncherEnvError, match="local rank 2: expected a GPU of its own"),
    ):
        devices.choose(RankEnv(local_rank=2, local_world_size=3))


def one_without_gpu(rank: int) -> None:
    """Have rank 1 see no GPU where rank 0 and rank 2 see theirs."""
    from train.distributed import devices
    from train.distributed.devices import Device

    found = Device("b", "cpu", "") if rank == 1 else Device("a", "cuda", f"GPU-{rank}")
    patch.object(devices, "describe", lambda _: found).start()


def test_every_rank_hears_of_it_at_once(world: World) -> None:
    began = time.monotonic()
    how: dict[str, Any] = {"nodes": (2, 1), "eval_dataset_path": None}
    run = world.start(**how, before=one_without_gpu)
    assert run.wait() == [3, 3, 3]
    assert time.monotonic() - began < run.config.start_timeout / 3
    for rank in range(3):
        assert "rank 1 on b on cpu" in run.said(rank)
    assert "rank 1 on b on cpu" in run.status()["reason"]


def late(rank: int) -> None:
    """Have rank 1 come when nobody waits any more."""
    if rank == 1:
        time.sleep(60)


def test_a_rank_that_does_not_come_is_named(world: World) -> None:
    run = world.start(nodes=(3,), start_timeout=4.0, eval_dataset_path=None, before=late)
    run.processes[0].join(60)
    assert run.processes[0].exitcode == 1
    assert "found no process for rank 1\n" in run.status()["reason"]
