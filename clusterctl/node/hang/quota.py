"""How long the kernel holds a process back: the CPU quota of its control group is used up."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple

from clusterctl.node.run.processes.processes import read_proc

CGROUPS = "/sys/fs/cgroup"


class Quota(NamedTuple):
    """Counts that only grow; all 0 without a quota."""

    periods: int = 0
    """How often the kernel began to count."""
    used_up: int = 0
    """In how many of these there was nothing left."""
    seconds: float = 0.0
    """For how long it held back what wanted to run; summed up over CPUs."""


def quota_of(pid: int) -> Quota:
    """Return that of the control group which holds a process back most, its own or one around."""
    found = Quota()
    for line in read_proc(pid, "cgroup").decode("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = os.path.join(CGROUPS, controllers).rstrip("/")
        path = os.path.normpath("/" + path.lstrip("/"))
        while True:
            found = max(found, _read(root + path), key=lambda one: one.seconds)
            if path == "/":
                break
            path = os.path.dirname(path)
    return found


def _read(folder: str) -> Quota:
    try:
        with open(os.path.join(folder, "cpu.stat"), encoding="ascii") as file:
            words: Dict[str, int] = {name: int(count) for name, count in map(str.split, file)}
    except (OSError, ValueError):
        return Quota()
    seconds = words.get("throttled_usec", 0) / 1e6 or words.get("throttled_time", 0) / 1e9
    return Quota(words.get("nr_periods", 0), words.get("nr_throttled", 0), seconds)
