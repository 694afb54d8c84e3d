"""What a run uses on this node, for `status`: CPU and memory of each rank, and what GPUs do."""

from __future__ import annotations

import os
import time

from clusterctl.node.agent.child_tasks import output_of
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import RecordedProcesses
from clusterctl.node.run.processes.processes import ProcessKey, read, read_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

    from clusterctl.node.run.processes.processes import Process

GPU_SECONDS = 5.0
"""A healthy driver answers in one; `status` does not wait for one that hangs."""
CPU_SECONDS = 0.3
"""How long CPU use is measured: the kernel counts in ticks of 0.01 s."""
_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total")
_QUERY = ("nvidia-smi", "--query-gpu=" + ",".join(_FIELDS), "--format=csv,noheader,nounits")
_MIB = 1024 * 1024


def usage(
    paths: NodePaths, job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]] = ()
) -> Dict[str, Any]:
    """Return what all processes use, and those of each rank, with what it started.

    `gpus` is None if they could not be read, or there are none.
    """
    table = _living(RecordedProcesses(paths).read())
    before, began = {pid: cpu_seconds(pid) for pid in table}, time.monotonic()
    found = gpus() if job.get("device") == "cuda" else None
    time.sleep(max(0.0, CPU_SECONDS - (time.monotonic() - began)))
    seconds = time.monotonic() - began
    busy = {pid: max(0.0, cpu_seconds(pid) - before[pid]) / seconds for pid in table}

    def used(pids: Sequence[int]) -> Dict[str, Any]:
        return {
            "processes": len(pids),
            "memory_bytes": sum(map(private_bytes, pids)),
            "cpu_percent": round(100 * sum(busy[pid] for pid in pids)),
        }

    owners = {
        pid: _rank_above(pid, table, {rank["pid"]: rank["rank"] for rank in ranks}) for pid in table
    }
    return {
        **used(list(table)),
        "ranks": [
            {"rank": rank["rank"], **used([pid for pid in table if owners[pid] == rank["rank"]])}
            for rank in ranks
            if rank["rank"] in owners.values()
        ],
        "gpus": found,
    }


def _living(keys: Sequence[ProcessKey]) -> Dict[int, Process]:
    """Return those of these very processes that still run, by pid."""
    found = ((read(pid), start) for pid, start in keys)
    return {one.pid: one for one, start in found if one and one.start == start and not one.exited}


def _rank_above(pid: int, table: Mapping[int, Process], ranks: Mapping[int, int]) -> Optional[int]:
    """Return the rank that a process is, or descends from; None: a launcher's own."""
    seen = set()
    while pid in table and pid not in seen:
        if pid in ranks:
            return ranks[pid]
        seen.add(pid)
        pid = table[pid].parent
    return None


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used; 0 if it has exited."""
    process = read(pid)
    return process.ticks / os.sysconf("SC_CLK_TCK") if process is not None else 0.0


def private_bytes(pid: int) -> int:
    """Return a process's memory without what it shares, which would be counted for each rank."""
    pages = read_proc(pid, "statm").split()
    if not pages:
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def gpus() -> Optional[List[Dict[str, Any]]]:
    """Return what the node's NVIDIA GPUs do; None: the driver does not answer."""
    text = output_of(_QUERY, GPU_SECONDS)
    return None if text is None else parse_gpus(text)


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
