"""The GPUs that a process may use are those that CUDA would show it, on odd machines too."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from train.distributed import gpus, host_memory
from train.distributed.gpus import find_devices

H100 = "NVIDIA H100 80GB HBM3"
FOUR = "\n".join(f"{n}, GPU-{n}{n}a0-77, {81559 - n}, 9.0, {H100}" for n in range(4))
MIG = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00a0-77)
  MIG 3g.40gb     Device  0: (UUID: MIG-aaaa-1)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-bbbb-2)
"""


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: str, listing: str = "") -> None:
    """Put a nvidia-smi on the path that prints these."""
    (folder / "rows").write_text(rows)
    (folder / "listing").write_text(listing)
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && exec cat {folder}/listing\ncat {folder}/rows\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize(
    ("shown", "count", "memory"),
    [
        (None, 4, 81556),
        ("0,1,2,3", 4, 81556),
        ("1", 1, 81558),
        (" 0, 2", 2, 81557),
        ("GPU-33a0-77", 1, 81556),
        ("GPU-33,GPU-0", 2, 81556),  # the beginning is enough
        ("GPU-", 0, 0),  # of several
        ("2,9,1", 1, 81557),  # CUDA ends at a wrong one
        ("2,2,1", 1, 81557),
        ("", 0, 0),
        ("-1", 0, 0),
        ("NoDevFiles", 0, 0),
    ],
)
def test_the_visible_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int, memory: int
) -> None:
    smi(tmp_path, monkeypatch, FOUR)
    found = find_devices({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    if not count:
        assert (found.name, found.are_gpus) == ("CPU", False)
        return
    assert (found.count, found.memory >> 20, found.name) == (count, memory, H100)
    assert found.bfloat16


@pytest.mark.parametrize(
    ("shown", "gib", "name"), [("MIG-aaaa-1", 40, "3g.40gb"), ("MIG-bbbb-2", 10, "1g.10gb+me")]
)
def test_a_slice_has_its_own_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, gib: int, name: str
) -> None:
    row = "0, GPU-00a0-77, 81920, 8.0, NVIDIA A100-SXM4-80GB"
    smi(tmp_path, monkeypatch, row, MIG)
    found = find_devices({"CUDA_VISIBLE_DEVICES": shown})
    assert (found.count, found.memory) == (1, gib << 30)
    assert found.name == f"NVIDIA A100-SXM4-80GB MIG {name}"
    assert not find_devices({"CUDA_VISIBLE_DEVICES": "MIG-cccc"}).are_gpus


@pytest.mark.parametrize("said", ["[N/A]", "[Not Supported]"])
def test_memory_that_is_the_hosts_is_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    smi(tmp_path, monkeypatch, f"0, GPU-1, {said}, 12.1, NVIDIA GB10")
    monkeypatch.setattr(host_memory, "physical", lambda: 119 << 30)
    found = find_devices({})
    assert (found.count, found.memory, found.name, found.lost) == (1, 119 << 30, "NVIDIA GB10", ())


@pytest.mark.parametrize("said", ["[Unknown Error]", "[GPU is lost]", "ERR!"])
def test_a_lost_one_is_not_counted_but_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    lines = FOUR.splitlines()
    lines[2] = f"2, GPU-22a0-77, {said}, {said}, {H100}"
    smi(tmp_path, monkeypatch, "\n".join(lines))
    found = find_devices({})
    assert (found.count, [gpu.index for gpu in found.lost]) == (3, ["2"])
    assert not find_devices({"CUDA_VISIBLE_DEVICES": "0,1"}).lost


def test_without_an_answer_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "Failed to initialize NVML: Driver/library version mismatch")
    monkeypatch.setattr(gpus, "NODES", tmp_path)
    assert not find_devices({}).are_gpus
    assert not gpus.are_there()
    (tmp_path / "nvidiactl").touch()
    assert not gpus.are_there()
    (tmp_path / "nvidia0").touch()
    assert gpus.are_there()


@pytest.mark.parametrize(("capability", "has"), [("7.0", False), ("7.5", False), ("8.0", True)])
def test_bfloat16_is_known_by_the_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str, *, has: bool
) -> None:
    smi(tmp_path, monkeypatch, f"0, GPU-1, 16384, {capability}, Tesla V100-SXM2-16GB")
    assert find_devices({}).bfloat16 is has
