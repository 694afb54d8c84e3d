"""What else must be free before a run counts as gone: its port, its memory on the GPUs.

True: it is. False: it is not. None: nobody could look, so it is not proven.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Set, Tuple

from clusterctl.node import gpus, joined, processes

POLL_SECONDS = 0.1
PORT_SECONDS = 2.0
GPU_SECONDS = 5.0
"""How long the kernel and the driver get to take back what a killed process had."""


def port(job: Dict[str, Any]) -> Tuple[Optional[bool], Optional[Dict[str, Any]]]:
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
        inodes = joined.listening(number)
        if not inodes:
            return True, None
        if time.monotonic() > until:
            return False, _holder(inodes)
        time.sleep(POLL_SECONDS)


def _holder(inodes: Set[str]) -> Optional[Dict[str, Any]]:
    pid = min(joined.holders(inodes), default=None)
    return None if pid is None else {"pid": pid, "cmd": processes.command_of(pid)}


def memory(job: Dict[str, Any], pids: Set[int]) -> Tuple[Optional[bool], List[Dict[str, Any]]]:
    """Tell whether the driver has taken back what these processes had, and of which it has not."""
    if not job:
        return None, []
    if job.get("device") != "cuda":
        return True, []
    until = time.monotonic() + GPU_SECONDS
    held = gpus.ghosts(pids)
    while held and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        held = gpus.ghosts(pids)
    if held is None:
        return None, []
    why = "gone, but the driver still keeps %s for it"
    return not held, [{"pid": pid, "cmd": "", "why": why % held[pid]} for pid in sorted(held)]
