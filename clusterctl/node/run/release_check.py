"""What else must be free before a run counts as stopped: its port, its memory on the GPUs.

True: it is. False: it is not. None: nobody could look, so it is not proven.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from clusterctl.node import tcp_sockets
from clusterctl.node.run import gpu_holders, processes

POLL_SECONDS = 0.1
PORT_SECONDS = 2.0
GPU_SECONDS = 5.0
"""How long the kernel and the driver get to take back what a killed process had."""


def check_port(job: Dict[str, Any]) -> Tuple[Optional[bool], Optional[Dict[str, Any]]]:
    """Tell whether nothing listens on the rendezvous port, and if something does, what.

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
            pid = min(tcp_sockets.holders({one.inode for one in found}), default=None)
            known = None if pid is None else {"pid": pid, "cmd": processes.command_of(pid)}
            return False, known
        time.sleep(POLL_SECONDS)


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
    held = gpu_holders.holders()
    while held and gpu_holders.unreleased(held, pids) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        held = gpu_holders.holders()
    if held is None:
        return GpuMemory(None, [], {})
    kept = gpu_holders.unreleased(held, pids)
    why = "gone, but the driver still keeps %s for it"
    unreleased = [{"pid": pid, "cmd": "", "why": why % kept[pid]} for pid in sorted(kept)]
    return GpuMemory(not kept, unreleased, held)
