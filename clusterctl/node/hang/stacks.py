"""Takes the stacks of a run's ranks on this node, with what the kernel knows beside them.

It waits for children of its own, and reading /proc of a process that is stuck in the kernel can
hang. So it runs in a process of its own (`take`), never in the supervisor's.
"""

from __future__ import annotations

import os
import time
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.file_io import read_json
from clusterctl.node.hang import proc
from clusterctl.node.run.files.run_paths import RANK_LOG, NodePaths
from clusterctl.node.run.processes import processes

SECONDS = 4.0
"""How long all of it may take."""
CPU_SECONDS = 0.3
"""How long CPU use is measured at least: the kernel counts in ticks of 0.01 s."""
MOST_PROCESSES = 64
"""Processes of a rank that are looked at: its own and data loaders' workers."""
BUSY_PERCENT = 1
"""A thread without a Python stack is told if it uses that much, or waits uninterruptibly."""


def dump_ranks(
    paths: NodePaths,
    ranks: Sequence[Mapping[str, Any]],
    *,
    only: Optional[Collection[int]] = None,
    quiet: Optional[Mapping[int, float]] = None,
    native: bool = False,
    with_locals: bool = False,
    seconds: float = SECONDS,
) -> Dict[str, Any]:
    """Return a `NodeDump` as JSON carries it.

    Args:
        paths: of the run's folder on this node.
        ranks: as in supervisor.json: `rank`, `pid`, `state`.
        only: these ranks alone; None: all.
        quiet: seconds since the last sign of life by rank, where somebody watched.
        native: with the frames of C and C++.
        with_locals: with the values of local variables.
        seconds: how long all of it may take.
    """
    del native, with_locals, seconds  # of the stacks that an interpreter tells
    job, began = read_json(paths.job), time.time()
    chosen = [one for one in ranks if only is None or one["rank"] in only]
    running = {one["rank"]: one["pid"] for one in chosen if one["state"] == "running"}
    of_ranks = proc.processes_of_ranks(running)
    looked = {rank: pids[:MOST_PROCESSES] for rank, pids in of_ranks.items()}
    before = _ticks(looked)
    start = time.monotonic()
    time.sleep(CPU_SECONDS)
    measured = time.monotonic() - start
    return {
        "run": job.get("run", ""),
        "node": job.get("node", ""),
        "time": began,
        "ranks": [
            _rank(paths, one, looked.get(one["rank"], []), before, measured, quiet or {})
            for one in chosen
        ],
        "throttled": [],
        "addresses": proc.own_addresses(),
    }


def _ticks(of_ranks: Mapping[int, List[int]]) -> Dict[int, int]:
    """Return the CPU time of each thread, in ticks."""
    pids = (pid for mine in of_ranks.values() for pid in mine)
    return {task.id: task.ticks for pid in pids for task in proc.tasks_of(pid)}


def _rank(
    paths: NodePaths,
    rank: Mapping[str, Any],
    pids: List[int],
    before: Mapping[int, int],
    seconds: float,
    quiet: Mapping[int, float],
) -> Dict[str, Any]:
    told = [_process(pid, before, seconds) for pid in pids]
    busy = [thread["cpu_percent"] for one in told for thread in one["threads"]]
    return {
        "rank": rank["rank"],
        "processes": told,
        "ended": rank["state"] == "ended",
        "printed_s": _printed_s(paths, rank["rank"]),
        "quiet_s": quiet.get(rank["rank"]),
        "cpu_percent": sum(busy) if told else None,
        "connections": proc.stuck_connections(pids),
        "collectives": [],
    }


def _printed_s(paths: NodePaths, rank: int) -> Optional[float]:
    """Return how long ago a rank printed something; None: it has not."""
    try:
        known = os.stat(os.path.join(paths.folder, RANK_LOG % rank))
    except OSError:
        return None
    return round(max(0.0, time.time() - known.st_mtime), 1) if known.st_size else None


def _process(pid: int, before: Mapping[int, int], seconds: float) -> Dict[str, Any]:
    """Return a process as the kernel shows it."""
    process = processes.read(pid)
    threads = [_thread(pid, task, before, seconds) for task in proc.tasks_of(pid)]
    source = "kernel" if any(one["wait"] or one["frames"] for one in threads) else ""
    return {
        "pid": pid,
        "command": processes.command_of(pid)[: proc.WORD_LIMIT],
        "state": process.state if process else "",
        "source": source,
        "missing": "" if source else "where it waits in the kernel is hidden from this user",
        "swap_bytes": proc.swap_bytes(pid),
        "threads": threads,
    }


def _thread(pid: int, task: proc.Task, before: Mapping[int, int], seconds: float) -> Dict[str, Any]:
    used = (task.ticks - before.get(task.id, task.ticks)) / proc.TICKS_PER_SECOND / seconds
    return {
        "id": task.id,
        "name": task.name,
        "state": task.state,
        "wait": proc.wait_of(pid, task.id),
        "cpu_percent": round(100 * max(0.0, used)),
        "frames": proc.kernel_frames(pid, task.id),
    }
