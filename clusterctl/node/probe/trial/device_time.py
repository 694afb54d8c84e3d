"""Times work on a device that is warm: by a GPU's own events, by the clock on a CPU.

An idle GPU runs at a fraction of its clock, and takes up to 0.2 s to raise it.
"""

from __future__ import annotations

import time
from typing import Any, Callable

WARM_SECONDS = {"cuda": 0.3, "cpu": 0.02}
"""Of work before anything is timed."""


def seconds_of(torch: Any, device: Any, work: Callable[[], Any]) -> float:  # noqa: ANN401  (torch's)
    """Return the seconds that the device worked; this waits for it."""
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def warm_up(torch: Any, device: Any, work: Callable[[], Any]) -> None:  # noqa: ANN401  (torch's)
    """Let the device work until its clocks are up."""
    end = time.monotonic() + WARM_SECONDS[device.type]
    while time.monotonic() < end:
        seconds_of(torch, device, work)
