"""Which processes hold memory of a GPU, as the drivers list them."""

from __future__ import annotations

import os
from typing import Dict, Optional, Set

from clusterctl.node.agent.child_tasks import gather, run_program
from clusterctl.node.file_io import list_folder

QUERY_SECONDS = 10.0

QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory,gpu_bus_id")
FORMAT = "--format=csv,noheader"

KFD = "/sys/class/kfd/kfd/proc"
"""Where AMD's driver lists the processes that use it, a folder each."""


def unreleased(held: Dict[int, str], pids: Set[int]) -> Dict[int, str]:
    """Return what is held for those of `pids` that are no processes any more, by pid.

    If the pid is in use again, its process is somebody else's.
    """
    return {n: what for n, what in held.items() if n in pids and not os.path.exists("/proc/%d" % n)}


def holders() -> Optional[Dict[int, str]]:
    """Return what each process holds, by pid; None if no driver answers."""
    nvidia = _nvidia()
    if nvidia is None and not os.path.isdir(KFD):
        return None
    amd = {int(name): "queues" for name in list_folder(KFD) if name.isdigit()}
    return {**amd, **(nvidia or {})}


def _nvidia() -> Optional[Dict[int, str]]:
    # In a state D that no signal ends the tool is left behind.
    tool = run_program("nvidia-smi", [*QUERY, FORMAT], QUERY_SECONDS)
    gather([tool])
    if tool.state != "ok" or tool.exit_code != 0:
        return None
    return parse_compute_apps(tool.output.decode("utf-8", "replace"))


def parse_compute_apps(text: str) -> Dict[int, str]:
    """Read nvidia-smi's list: `4711, 71234 MiB, 00000000:18:00.0`, a line each."""
    found = {}
    for line in text.splitlines():
        pid, memory, bus = [*(part.strip() for part in line.split(",")), "", ""][:3]
        if pid.isdigit():
            found[int(pid)] = "%s of GPU %s" % (memory, bus)
    return found
