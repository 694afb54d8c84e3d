"""What else must be free before a run counts as stopped: its port, its memory on the GPUs.

True: it is. False: it is not. None: it could not be checked, so it is not proven.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from clusterctl.node import tcp_sockets
from clusterctl.node.agent.child_tasks import output_of
from clusterctl.node.file_io import list_folder
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import parse_environ

POLL_SECONDS = 0.1
PORT_SECONDS = 2.0
GPU_SECONDS = 5.0
"""How long the kernel and the driver get to take back what a killed process had."""

QUERY_SECONDS = 10.0
QUERY = ("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory,gpu_bus_id")
FORMAT = "--format=csv,noheader"

KFD = "/sys/class/kfd/kfd/proc"
"""Where AMD's driver lists the processes that use it, a folder each."""


def check_port(job: Dict[str, Any], run: str) -> Tuple[Optional[bool], Optional[Dict[str, Any]]]:
    """Tell whether nothing of a run listens on its rendezvous port, and if something does, what.

    Only the master's node had it; on the others there is nothing to look for.
    """
    if "node_rank" not in job:
        return None, None
    if job["node_rank"] != 0:
        return True, None
    number = job["master"]["port"]
    until = time.monotonic() + PORT_SECONDS
    while True:
        found = tcp_sockets.listening(number)
        if not found:
            return True, None
        if time.monotonic() > until:
            pid = min(tcp_sockets.socket_holders({one.inode for one in found}), default=None)
            if pid is not None and _is_of_another(pid, run):
                return True, None
            known = None if pid is None else {"pid": pid, "cmd": processes.command_of(pid)}
            return False, known
        time.sleep(POLL_SECONDS)


def _is_of_another(pid: int, run: str) -> bool:
    """Tell whether a process is marked as one of another run, which may have taken the port."""
    process = processes.read(pid)
    if process is None or process.uninterruptible:
        return False  # to read its environment could hang
    mark = parse_environ(processes.read_proc(pid, "environ")).get(processes.ENV_RUN_ID)
    return mark not in (None, run.encode())


class GpuMemory(NamedTuple):
    """What is known of the memory on the GPUs."""

    free: Optional[bool]
    """The driver has taken back what the run's processes had."""
    unreleased: List[Dict[str, Any]]
    """Those of which it has not."""
    held: Dict[int, str]
    """What any process holds, by pid."""


def check_gpu_memory(job: Dict[str, Any], pids: Set[int]) -> GpuMemory:
    """Look whether the driver has taken back what these processes had."""
    if not job:
        return GpuMemory(None, [], {})
    if job.get("device") != "cuda":
        return GpuMemory(True, [], {})
    until = time.monotonic() + GPU_SECONDS
    held = memory_holders()
    while held and unreleased_memory(held, pids) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        held = memory_holders()
    if held is None:
        return GpuMemory(None, [], {})
    kept = unreleased_memory(held, pids)
    why = "gone, but the driver still keeps %s for it"
    unreleased = [{"pid": pid, "cmd": "", "why": why % kept[pid]} for pid in sorted(kept)]
    return GpuMemory(not kept, unreleased, held)


def unreleased_memory(held: Dict[int, str], pids: Set[int]) -> Dict[int, str]:
    """Return what is held for those of `pids` that are no processes any more, by pid.

    If the pid is in use again, it is another process.
    """
    return {n: what for n, what in held.items() if n in pids and not os.path.exists("/proc/%d" % n)}


def memory_holders() -> Optional[Dict[int, str]]:
    """Return what each process holds of the GPUs' memory, by pid; None if no driver answers."""
    nvidia = _nvidia()
    if nvidia is None and not os.path.isdir(KFD):
        return None
    amd = {int(name): "queues" for name in list_folder(KFD) if name.isdigit()}
    return {**amd, **(nvidia or {})}


def _nvidia() -> Optional[Dict[int, str]]:
    text = output_of([*QUERY, FORMAT], QUERY_SECONDS)
    return None if text is None else parse_compute_apps(text)


def parse_compute_apps(text: str) -> Dict[int, str]:
    """Read nvidia-smi's list: `4711, 71234 MiB, 00000000:18:00.0`, a line each."""
    found = {}
    for line in text.splitlines():
        pid, memory, bus = [*(field.strip() for field in line.split(",")), "", ""][:3]
        if pid.isdigit():
            found[int(pid)] = "%s of GPU %s" % (memory, bus)
    return found
