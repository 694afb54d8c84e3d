"""What a run uses on this node, for `status`: processes, memory, and what its GPUs do."""

from __future__ import annotations

import os

from clusterctl.node.agent.child_tasks import gather, run_program
from clusterctl.node.run.processes import alive, read_proc
from clusterctl.node.run.run_paths import NodePaths
from clusterctl.node.run.status import RecordedProcesses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

GPU_SECONDS = 5.0
"""A healthy driver answers in one; `status` does not wait for one that hangs."""
_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total")
_QUERY = ("nvidia-smi", "--query-gpu=" + ",".join(_FIELDS), "--format=csv,noheader,nounits")
_MIB = 1024 * 1024


def usage(paths: NodePaths, job: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `processes`, `memory_bytes` and `gpus`; None: nobody could look, or there are none."""
    pids = [key[0] for key in RecordedProcesses(paths).read() if alive(key)]
    return {
        "processes": len(pids),
        "memory_bytes": sum(map(private_bytes, pids)),
        "gpus": gpus() if job.get("device") == "cuda" else None,
    }


def private_bytes(pid: int) -> int:
    """Return a process's memory without what it shares, which would be counted for each rank."""
    pages = read_proc(pid, "statm").split()
    if not pages:
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def gpus() -> Optional[List[Dict[str, Any]]]:
    """Return what the node's NVIDIA GPUs do; None: the driver does not tell."""
    tool = run_program("nvidia-smi", _QUERY, GPU_SECONDS)
    gather([tool])
    if tool.state != "ok" or tool.exit_code:
        return None
    return parse_gpus(tool.output.decode("utf-8", "replace"))


def parse_gpus(text: str) -> List[Dict[str, Any]]:
    """Read nvidia-smi's lines `0, 97, 71234, 81559`; a MIG device has no utilization: `[N/A]`."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(_FIELDS) or not words[0].isdigit():
            continue
        index, percent, used, total = (int(word) if word.isdigit() else None for word in words)
        found.append(
            {
                "index": index,
                "percent": percent,
                "memory_used_bytes": None if used is None else used * _MIB,
                "memory_total_bytes": None if total is None else total * _MIB,
            }
        )
    return found
