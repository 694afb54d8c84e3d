"""What GPUs tell of a hang: whether their kernels compute or only wait, and what slows them."""

from __future__ import annotations

from typing import Collection, List, Sequence

from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.hang import nvml
from clusterctl.node.hang.nvml import Gpu

SECONDS = 2.0
"""A healthy driver that is loaded answers in less."""
MEMORY_NOISE = 1
"""Percent of the time in which memory moved."""
_REASONS = {
    0x08: "slowed down by its hardware",
    0x40: "too hot",
    0x80: "the power supply brakes it",
    0x20: "slowed down by the driver: too hot",
}


def throttled_gpus(pids: Collection[int] = ()) -> List[str]:
    """Return each GPU of these processes that is slowed down, in words; none: of the node.

    It waits for a child. If the driver does not answer, the list is empty.
    """
    try:
        told = run_with_timeout(SECONDS, nvml.read)
    except (TimeoutError, ChildProcessError):
        return []
    return throttled(of_processes([Gpu(**one) for one in told or ()], pids))


def throttled(gpus: Sequence[Gpu]) -> List[str]:
    """Return each of these that is slowed down, in words."""
    found = []
    for gpu in gpus:
        reasons = [words for bit, words in _REASONS.items() if (gpu.slowed or 0) & bit]
        told = ["%d °C" % gpu.celsius] if gpu.celsius is not None else []
        told += ["%.0f W" % (gpu.milliwatts / 1000)] if gpu.milliwatts is not None else []
        if reasons:
            known = " (%s)" % ", ".join(told) if told else ""
            found.append("GPU %d: %s%s" % (gpu.number, ", ".join(reasons), known))
    return found


def of_processes(
    gpus: Sequence[Gpu], pids: Collection[int], listed: Collection[str] = ()
) -> Sequence[Gpu]:
    """Return the GPUs that these processes use; if the driver lists no process, those `listed`.

    `listed` are UUIDs; none: all of the node.
    """
    found = [one for one in gpus if not set(pids).isdisjoint(one.pids or ())]
    return found or [one for one in gpus if not listed or one.uuid in listed]


def rest(gpus: Sequence[Gpu]) -> bool:
    """Tell whether kernels run on these, but move nothing in memory.

    A collective that waits for another rank looks like that: NCCL polls, at 100 %.
    """
    known = [one for one in gpus if one.busy is not None and one.moving is not None]
    busy = any(one.busy for one in known)
    return busy and all((one.moving or 0) <= MEMORY_NOISE for one in known)


def compute(gpus: Sequence[Gpu], own: Collection[int], run: Collection[int]) -> bool:
    """Tell whether memory moves on a GPU of these processes, which no other run uses.

    `run` are the processes of all ranks.
    """
    used = [one for one in gpus if one.pids and set(one.pids) <= set(run)]
    return any(
        (one.moving or 0) > MEMORY_NOISE for one in used if not set(own).isdisjoint(one.pids or ())
    )
