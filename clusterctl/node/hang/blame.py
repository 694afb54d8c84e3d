"""Says whether a node itself keeps a rank from running, by the stacks of its ranks. Pure.

The verdict on a hang needs the stacks of all nodes, and is the controller's. This is what one node
can tell by itself, so that a run that restarts does so without it.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping

MOUNT = re.compile(
    r"\bfuse_|\bnfs4?_|\brpc_wait|\blustre|\bll_|\bcl_sync|\bceph_|\bcifs_|\bsmb2?_|\bv9fs_|\bp9_"
    r"|\bgpfs|\brequest_wait_answer"
)
"""Functions of the kernel in which a thread waits for the server of a file system."""
DRIVER = re.compile(r"\bnvidia|\buvm_|\bnvkms|\b_?nv\d+rm|\bos_acquire|\bamdgpu|\bkfd_")
"""And for the driver of a GPU."""
_MOST_FRAMES = 64


def blame(dump: Mapping[str, Any]) -> str:
    """Return why a rank cannot run on this node, from its dump; empty: nothing tells."""
    for rank in dump["ranks"]:
        for process in rank["processes"]:
            why = _of_process(process)
            if why:
                return "rank %d (pid %d) %s" % (rank["rank"], process["pid"], why)
    return "; ".join(dump["throttled"][:2])


def _of_process(process: Mapping[str, Any]) -> str:
    words = list(_waits(process))
    if any(map(MOUNT.search, words)):
        return "waits for a file server"
    if process["state"] == "D":
        in_driver = any(map(DRIVER.search, words))
        return "waits for the driver of a GPU" if in_driver else "waits for a disk"
    return ""


def _waits(process: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the main thread waits in the kernel."""
    for thread in process["threads"][:1]:
        yield thread["wait"]
        inside = (frame for frame in thread["frames"][:_MOST_FRAMES] if not frame.get("file"))
        yield from (frame["function"] for frame in inside)
