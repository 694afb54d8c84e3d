"""A sample has what the node, its GPUs and each rank used since the one before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from clusterctl.node.hang.nvml import Gpu
from clusterctl.node.history import sampler
from clusterctl.node.run.processes import processes
from clusterctl.node.run.samples.kept import read_rows


def test_a_sample_has_the_use_of_the_node_of_gpus_and_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "SECONDS", 0.2)
    own = processes.read(os.getpid())
    assert own is not None
    path, other = str(tmp_path / "samples.jsonl"), 1
    gpus = [
        Gpu(0, "GPU-0", 97, 40, 512_400, 61, 4, [own.pid], 71 << 30, 80 << 30),
        Gpu(1, "GPU-1", None, None, None, None, None, [other]),
    ]
    ranks = [{"pid": own.pid, "rank": 7, "state": "running"}]
    found = sampler.Sampler(path, lambda: ranks, lambda: gpus, lambda: None)
    found.scan([own])
    assert not read_rows(path), "there is nothing to compare it with"
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    now = processes.read(os.getpid())
    assert now is not None
    found.scan([now])
    found.scan([now])
    (row,) = read_rows(path)
    assert row.gpus[0] == (0, 7, 80 << 30, 97, 71 << 30, 512, 61, 4)
    assert row.gpus[1] == (1, None, None, None, None, None, None, None)
    assert row.ranks[0].rank == 7
    assert (row.ranks[0].cpu_percent or 0) > 10
    assert (row.ranks[0].memory_bytes or 0) > 1 << 20
    assert (row.machine.cpu_percent or 0) > 10
    assert (row.machine.memory_bytes or 0) > 1 << 20
    assert row.machine.receive_bytes_s is not None
    assert row.machine.rdma_receive_bytes_s is None
    assert 0.25 < row.seconds < 60


def test_a_full_disk_costs_a_sample_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SECONDS", 0.0)
    found = sampler.Sampler("/dev/full", list, list, lambda: 5)
    for _ in range(3):
        found.scan([])
