"""What the GPUs of this node tell of a hang: whether their kernels wait, and what slows them."""

from __future__ import annotations

from typing import List

from clusterctl.node.agent.child_tasks import output_of

SECONDS = 5.0
MEMORY_NOISE = 1
"""Percent of the time in which memory moved."""
_REASONS = {
    "hw_slowdown": "slowed down by its hardware",
    "hw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "the power supply brakes it",
    "sw_thermal_slowdown": "slowed down by the driver: too hot",
}


def gpus_rest() -> bool:
    """Tell whether kernels run on this node's GPUs, but move nothing in their memory.

    A collective that waits for another rank looks like that. False, too, if the driver does not
    answer.
    """
    return rest(_ask("utilization.gpu", "utilization.memory", seconds=SECONDS))


def throttled_gpus() -> List[str]:
    """Return each GPU that is slowed down, in words; none if the driver does not answer."""
    found = []
    fields = ["clocks_throttle_reasons." + name for name in _REASONS]
    text = _ask("index", *fields, seconds=1.0)  # a healthy driver answers in less
    for line in text.splitlines():
        index, *active = (word.strip() for word in line.split(","))
        reasons = [words for words, state in zip(_REASONS.values(), active) if state == "Active"]
        if reasons:
            found.append("GPU %s: %s" % (index[:8], ", ".join(reasons)))
    return found


def _ask(*fields: str, seconds: float) -> str:
    """Return a line of each GPU; nothing if the driver does not answer."""
    query = ("--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits")
    return output_of(("nvidia-smi", *query), seconds) or ""


def rest(text: str) -> bool:
    """Judge nvidia-smi's lines `100, 0`."""
    rows = [line.split(",") for line in text.splitlines()]
    known = [tuple(int(word) for word in row) for row in rows if all(map(_is_number, row))]
    busy = any(percent > 0 for percent, _ in known)
    return bool(known) and busy and all(memory <= MEMORY_NOISE for _, memory in known)


def _is_number(word: str) -> bool:
    return word.strip().isdigit()
