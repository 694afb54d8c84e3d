"""Ranks that cannot train together are named before any of them waits for NCCL."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.world import World
from train.config.config import Config
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
        patch("torch.cuda.get_arch_list", list),
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


@pytest.fixture
def node_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this node have the device file of a GPU."""
    from train.distributed import gpus

    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "NODES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("node_with_a_gpu")
def test_a_torch_without_cuda_is_refused_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.distributed import devices

    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(
        LauncherEnvError, match=r"which is built without CUDA\nhint: .*install torch$"
    ):
        devices.choose(RankEnv())
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert devices.choose(RankEnv()).type == "cpu"


@pytest.mark.usefixtures("node_with_a_gpu")
def test_a_driver_too_old_is_refused_in_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.distributed import devices

    words = (
        "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."
    )

    def is_available() -> bool:
        warnings.warn(words, stacklevel=1)
        return False

    monkeypatch.setattr("torch.cuda.is_available", is_available)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(LauncherEnvError) as refused:
        devices.choose(RankEnv())
    assert f"found {words}\nhint: " in str(refused.value)


@pytest.mark.usefixtures("node_with_a_gpu")
def test_the_check_refuses_it_too(base: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from train import preflight

    monkeypatch.setattr("torch.version.cuda", None)
    failed = [each for each in preflight.check(base) if each.state == "fail"]
    assert [each.about for each in failed] == ["devices"]
    assert "which is built without CUDA (hint: " in failed[0].said


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (("sm_75", "sm_80", "sm_90"), (7, 0), False),
        (("sm_75", "sm_80", "sm_90"), (8, 6), True),
        (("sm_75", "sm_80", "sm_90"), (12, 0), False),
        (("sm_75", "compute_90"), (12, 0), True),
        (("sm_90a",), (9, 0), True),
        (("sm_100a", "compute_100a"), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("sm_120",), (12, 1), True),
        (("gfx942",), (9, 4), True),
    ],
)
def test_kernels_run_on_their_generation(
    built: tuple[str, ...], capability: tuple[int, int], *, runs: bool
) -> None:
    from train.distributed.devices import runs_on

    assert runs_on(built, capability) is runs


def test_a_gpu_without_kernels_is_refused() -> None:
    from train.distributed import devices

    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: 1),
        patch("torch.cuda.get_arch_list", lambda: ["sm_75", "sm_80"]),
        patch("torch.cuda.get_device_capability", lambda _: (7, 0)),
        patch("torch.cuda.get_device_name", lambda _: "Tesla V100"),
        pytest.raises(LauncherEnvError, match=r"expected kernels for Tesla V100 of .* \(sm_70\)"),
    ):
        devices.choose(RankEnv())


def one_without_gpu(rank: int) -> None:
    """Have rank 1 see no GPU where rank 0 and rank 2 see theirs."""
    from train.distributed import devices
    from train.distributed.devices import Device

    found = Device("b", "cpu", "") if rank == 1 else Device("a", "cuda", f"GPU-{rank}")
    patch.object(devices, "describe", lambda _: found).start()


def test_every_rank_hears_of_it_at_once(world: World) -> None:
    began = time.monotonic()
    how: dict[str, Any] = {"nodes": (2, 1)}
    run = world.start(**how, before=one_without_gpu)
    assert run.wait() == [3, 3, 3]
    assert time.monotonic() - began < run.config.start_timeout / 3
    for rank in range(3):
        assert "rank 1 on b on cpu" in run.said(rank)
    assert "rank 1 on b on cpu" in run.status()["reason"]


def lost(rank: int) -> None:
    """Have rank 1 end once all have met, before it says what it trains on."""
    from train.distributed import devices

    if rank == 1:
        devices.describe = lambda _device: sys.exit(1)  # type: ignore[assignment]


def test_a_rank_that_ends_before_it_names_its_device_is_named(world: World) -> None:
    run = world.start(nodes=(2,), start_timeout=4.0, before=lost)
    run.processes[0].join(60)
    assert run.processes[0].exitcode == 1
    assert (
        "expected all 2 ranks within start_timeout, found no process for rank 1\n"
        in (run.status()["reason"])
    )


def late(rank: int) -> None:
    """Have rank 1 come when nobody waits any more."""
    if rank == 1:
        time.sleep(60)


def test_a_rank_that_does_not_come_is_named(world: World) -> None:
    run = world.start(nodes=(3,), start_timeout=4.0, before=late)
    run.processes[0].join(60)
    assert run.processes[0].exitcode == 1
    assert "found no process for rank 1\n" in run.status()["reason"]
