"""Has the GPUs of this node read while ranks show no other sign of life, and keeps what they told.

Each reading is a child of its own. One that stays would count as a process of the run, and one
that hangs in the driver would keep its end back.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Tuple

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang import gpus, nvml
from clusterctl.node.hang.nvml import Gpu
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run_lock import resources_of
from clusterctl.node.supervisor.apart import Helper

READING_SECONDS = 20.0
"""How long a reading may take: the first one may load the driver."""
READINGS = 3
"""So many of the last agree if a GPU rests: between two kernels nothing moves, either."""
FRESH_SECONDS = 60.0
RETRY_SECONDS = 60.0
"""Longest between readings in vain, whose time doubles: a driver may come late, or never."""
LATEST_SECONDS = 20.0
"""How old a reading may be to count as what they do now."""


class GpuWatch:
    """The last readings of this node's GPUs; none if the job uses none, or no driver answers."""

    def __init__(self, loop: EventLoop, job: NodeJob, period: float) -> None:
        """Read nothing yet; then at most once in `period` seconds."""
        self._on = job["device"] == "cuda"
        self._listed = resources_of(job.get("lock") or "")
        self._helper, self._period = Helper(loop, READING_SECONDS), period
        self._due, self._vain = -math.inf, 0
        self._readings: Deque[Tuple[float, List[Gpu]]] = deque(maxlen=READINGS)

    def read(self) -> None:
        """Have them read, unless that was done just now, or has not ended."""
        now = time.monotonic()
        if self._on and now >= self._due and self._helper.start(_read, self._take):
            self._due = now + self._period

    def _take(self, told: Dict[str, Any]) -> None:
        if told.get("gpus") is not None:
            read = [Gpu(**one) for one in told["gpus"]]
            self._readings.append((time.monotonic(), read))
            self._vain = 0
        else:
            self._vain = min(self._vain + 1, 10)
            wait = max(1.0, self._period) * 2**self._vain
            self._due = time.monotonic() + min(RETRY_SECONDS, wait)

    def latest(self) -> List[Gpu]:
        """Return what they did last, none if that is unknown; have them read for the next time."""
        self.read()
        at, read = self._readings[-1] if self._readings else (-math.inf, [])
        return read if time.monotonic() - at < LATEST_SECONDS else []

    def compute(self, own: Collection[int], run: Collection[int], *, since: float) -> bool:
        """Tell whether a GPU that these processes use has computed; `run`: those of all ranks."""
        return any(gpus.compute(one, own, run) for at, one in self._readings if at > since)

    def rest(self, own: Collection[int]) -> bool:
        """Tell whether kernels on the GPUs of these processes only wait; False: unknown."""
        fresh = time.monotonic() - FRESH_SECONDS
        last = [one for at, one in self._readings if at > fresh]
        return bool(last) and all(
            gpus.rest(gpus.of_processes(one, own, self._listed)) for one in last
        )


def _read() -> Dict[str, Any]:
    return {"gpus": nvml.read()}
