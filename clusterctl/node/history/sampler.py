"""Samples this node and its ranks for as long as a run lives here, with what is read anyway."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.hang.nvml import Gpu
from clusterctl.node.hang.sample import processes_of
from clusterctl.node.history.machine import Counters, counters, use_between
from clusterctl.node.run.processes.processes import Process, ProcessKey
from clusterctl.node.run.processes.usage import private_bytes
from clusterctl.node.run.samples.kept import append_row
from clusterctl.node.run.samples.row import GpuUse, RankUse, Row

SECONDS = 5.0
"""Between two samples."""
TICK = os.sysconf("SC_CLK_TCK")


class Sampler:
    """Writes a sample now and then; one that no disk takes is left out."""

    def __init__(
        self,
        path: str,
        snapshots: Callable[[], List[Dict[str, Any]]],
        gpus: Callable[[], Sequence[Gpu]],
        rdma: Callable[[], Optional[int]],
    ) -> None:
        """Sample nothing yet.

        Args:
            snapshots: returns what is known of the ranks.
            gpus: has the GPUs read for the next sample, and returns what they did last.
            rdma: returns the bytes that came by RDMA until now, as far as they are known.
        """
        self._path, self._snapshots, self._gpus, self._rdma = path, snapshots, gpus, rdma
        self._at = time.monotonic()
        self._before: Optional[Counters] = None
        self._ticks: Dict[ProcessKey, int] = {}

    def scan(self, living: Sequence[Process]) -> None:
        """Take a sample if it is time; `living` are this process's descendants."""
        now = time.monotonic()
        seconds = now - self._at
        if self._before is not None and seconds < SECONDS - 0.1:  # the scans come in steps
            return
        gpus, found = self._gpus(), counters(self._rdma())
        running = {
            one["pid"]: one["rank"] for one in self._snapshots() if one["state"] == "running"
        }
        own = processes_of(running, living)
        if self._before is not None:
            machine = use_between(self._before, found, seconds)
            row = Row(
                round(time.time(), 1),
                round(seconds, 1),
                machine,
                tuple(_gpu_uses(gpus, own)),
                tuple(self._rank_use(rank, own[rank], seconds) for rank in sorted(own)),
            )
            with contextlib.suppress(OSError):
                append_row(self._path, row)
        self._at, self._before = now, found
        self._ticks = {one.key: one.ticks for one in living}

    def _rank_use(self, rank: int, own: Sequence[Process], seconds: float) -> RankUse:
        # A process that is new is counted from its start.
        ticks = sum(max(0, one.ticks - self._ticks.get(one.key, 0)) for one in own)
        memory = sum(private_bytes(one.pid) for one in own)
        return RankUse(rank, round(100 * ticks / TICK / seconds), memory)


def _gpu_uses(gpus: Sequence[Gpu], own: Mapping[int, Sequence[Process]]) -> List[GpuUse]:
    ranks = {one.pid: rank for rank, processes in own.items() for one in processes}
    found = []
    for gpu in gpus:
        users = {ranks[pid] for pid in gpu.pids or () if pid in ranks}
        found.append(
            GpuUse(
                gpu.number,
                users.pop() if len(users) == 1 else None,
                gpu.memory_total,
                gpu.busy,
                gpu.memory_used,
                None if gpu.milliwatts is None else round(gpu.milliwatts / 1000),
                gpu.celsius,
                gpu.slowed,
            )
        )
    return found
