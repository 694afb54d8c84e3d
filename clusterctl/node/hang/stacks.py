"""Takes the stacks of a run's ranks on this node, and what the kernel knows of them.

It waits for children of its own, and reading /proc of a process that is stuck in the kernel can
hang. So it runs in a process of its own (`take`), never in the supervisor's.
"""

from __future__ import annotations

import os
import time
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.file_io import read_json
from clusterctl.node.hang import proc, py_spy, sample, tools
from clusterctl.node.hang.gpus import throttled_gpus
from clusterctl.node.hang.libraries import answer_of, ask_libraries
from clusterctl.node.hang.take import SECONDS
from clusterctl.node.run.files.run_paths import RANK_LOG, NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.wire import to_json

CPU_SECONDS = 0.3
"""How long CPU use is measured at least: the kernel counts in ticks of 0.01 s."""
MOST_PROCESSES = 64
"""Most processes of a rank that are read: its own and data loaders' workers."""
BYTES_LIMIT = 2 * 1024 * 1024
"""Bytes of a node's dump as JSON."""
FEW_PROCESSES, FEW_FRAMES = 4, 16
"""What is left of each rank, and of each thread, if the dump would be larger."""
MOUNT_SECONDS = 2.0
"""How long a folder of the job's may take to answer: its mount may be dead."""
BUSY_PERCENT = 1
"""A thread without a Python stack counts if it uses that much, or waits uninterruptibly."""


def dump_ranks(
    paths: NodePaths,
    ranks: Sequence[Mapping[str, Any]],
    *,
    only: Optional[Collection[int]] = None,
    quiet: Optional[Mapping[int, float]] = None,
    native: bool = False,
    with_locals: bool = False,
    stacks_only: bool = False,
    seconds: float = SECONDS,
) -> Dict[str, Any]:
    """Return a `NodeDump` as JSON carries it.

    Args:
        paths: of the run's folder on this node.
        ranks: as in supervisor.json: `rank`, `pid`, `state`.
        only: these ranks alone; None: all.
        quiet: seconds since the last sign of life by rank, if that was watched.
        stacks_only: without GPUs, connections and what libraries know, which a verdict needs
            besides.
        seconds: how long all of it may take.
    """
    until = time.monotonic() + seconds
    job, began = read_json(paths.job), time.time()
    chosen = [one for one in ranks if only is None or one["rank"] in only]
    running = {one["rank"]: one["pid"] for one in chosen if one["state"] == "running"}
    of_ranks = proc.processes_of_ranks(running)
    looked = {rank: pids[:MOST_PROCESSES] for rank, pids in of_ranks.items()}
    asked = None
    if not stacks_only:
        nccl = only is None and not job.get("node_rank")
        asked = ask_libraries(job, chosen, of_ranks, nccl=nccl)
    before, start = _tasks(looked), time.monotonic()
    told = _python_stacks(paths, job, before, py_spy.Wanted(native, with_locals), until)
    on_gpu = job.get("device") == "cuda" and not stacks_only
    throttled = throttled_gpus() if on_gpu else []
    time.sleep(max(0.0, CPU_SECONDS - (time.monotonic() - start)))
    look = _Look(before, time.monotonic() - start, told)
    dump = {
        "run": job.get("run", ""),
        "node": job.get("node", ""),
        "time": began,
        "ranks": [
            _rank(paths, one, looked.get(one["rank"], []), look, quiet or {}) for one in chosen
        ],
        "throttled": throttled,
        "addresses": proc.own_addresses(),
    }
    if asked is not None:
        answer, stuck = answer_of(asked), proc.stuck_sockets()
        dump.update(communicators=answer["communicators"], unheard=answer["unheard"])
        for one in dump["ranks"]:
            one["connections"] = proc.connections_of(looked.get(one["rank"], []), stuck)
            one["collectives"] = answer["collectives"].get(str(one["rank"]), [])
    return _bounded(dump)


class _Look(NamedTuple):
    """What was seen of all processes at once."""

    before: Dict[int, List[proc.Task]]
    """The threads of each process, when the dump began."""
    seconds: float
    """How long it took."""
    stacks: Mapping[int, Tuple[List[Dict[str, Any]], str]]
    """Of each interpreter the stacks, or none and why."""


def _tasks(of_ranks: Mapping[int, List[int]]) -> Dict[int, List[proc.Task]]:
    """Return the threads of each process; the ranks' own processes come first."""
    depth = max(map(len, of_ranks.values()), default=0)
    pids = [
        mine[place] for place in range(depth) for mine in of_ranks.values() if place < len(mine)
    ]
    return {pid: proc.tasks_of(pid) for pid in pids}


def _python_stacks(
    paths: NodePaths,
    job: Mapping[str, Any],
    tasks: Mapping[int, List[proc.Task]],
    wanted: py_spy.Wanted,
    until: float,
) -> Dict[int, Tuple[List[Dict[str, Any]], str]]:
    """Return the stacks of each interpreter, or none and why."""
    states = {pid: "".join(task.state for task in mine) for pid, mine in tasks.items()}
    states = {
        pid: known
        for pid, known in states.items()
        if py_spy.is_python(pid, uninterruptible="D" in known)
    }
    program, problem = find_py_spy(paths, job)
    if program is None:
        return {pid: ([], problem) for pid in states}
    found, problems = py_spy.read_stacks(program, states, wanted, until)
    return {pid: (found.get(pid, []), problems.get(pid, "")) for pid in states}


def find_py_spy(paths: NodePaths, job: Mapping[str, Any]) -> Tuple[Optional[str], str]:
    """Return py-spy's path, or None and why there is none."""
    programs = [job.get("python") or "", *job.get("argv", [])[:1]]
    try:
        program, problem = run_with_timeout(MOUNT_SECONDS, lambda: tools.find_tool(paths, programs))
    except (TimeoutError, ChildProcessError):
        return None, "the folder of the job's interpreter does not answer"
    return program, problem


def _rank(
    paths: NodePaths,
    rank: Mapping[str, Any],
    pids: List[int],
    look: _Look,
    quiet: Mapping[int, float],
) -> Dict[str, Any]:
    told, percents = [], []
    for pid in pids:
        threads = _threads(pid, look)
        percents += [one["cpu_percent"] for one in threads]
        told.append(_process(pid, threads, look))
    return {
        "rank": rank["rank"],
        "processes": told,
        "ended": rank["state"] == "ended",
        "printed_s": _printed_s(paths, rank["rank"]),
        "quiet_s": quiet.get(rank["rank"]),
        "cpu_percent": sum(percents) if told else None,
    }


def _printed_s(paths: NodePaths, rank: int) -> Optional[float]:
    """Return how long ago a rank printed something; None: it has not."""
    try:
        known = os.stat(os.path.join(paths.folder, RANK_LOG % rank))
    except OSError:
        return None
    return round(max(0.0, time.time() - known.st_mtime), 1) if known.st_size else None


def _process(pid: int, threads: List[Dict[str, Any]], look: _Look) -> Dict[str, Any]:
    """Return a process with its stacks: the interpreter's, else the kernel's."""
    process = processes.read(pid)
    stacks, problem = look.stacks.get(pid, ([], ""))
    told = [one for one in threads if one["id"] == pid or one["state"] == "D" or _busy(one)]
    if stacks:
        source, missing = "py-spy", problem
        told = _with_stacks(pid, threads, stacks)
    else:
        for one in told:
            one["frames"] = proc.kernel_frames(pid, one["id"])
        seen = any(one["wait"] or one["frames"] for one in told)
        source = "kernel" if seen else ""
        missing = "its Python stack: " + problem if problem else ""
        if not missing and not seen and told and told[0]["state"] != "R":
            missing = "where it waits: the kernel hides that from this user"
    return {
        "pid": pid,
        "command": processes.command_of(pid)[: proc.WORD_LIMIT],
        "state": process.state if process else "",
        "source": source,
        "missing": missing,
        "swap_bytes": proc.swap_bytes(pid),
        "threads": told,
    }


def _with_stacks(
    pid: int, threads: List[Dict[str, Any]], stacks: Sequence[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Return the threads that have a stack, or do something; the main thread first."""
    by_id = {one["id"]: one for one in threads}
    found = []
    for stack in stacks:
        known = by_id.pop(stack["id"], None) or {"state": "", "wait": "", "cpu_percent": None}
        found.append({**known, **stack})
    found += [one for one in by_id.values() if one["state"] == "D" or _busy(one)]
    return sorted(found, key=lambda one: one["id"] != pid)


def _busy(thread: Mapping[str, Any]) -> bool:
    return bool(thread["cpu_percent"] >= BUSY_PERCENT)


def _threads(pid: int, look: _Look) -> List[Dict[str, Any]]:
    """Return the threads of a process as the kernel shows them."""
    before = {task.id: task.ticks for task in look.before[pid]}
    return [_thread(pid, task, before, look.seconds) for task in proc.tasks_of(pid)]


def _thread(pid: int, task: proc.Task, before: Mapping[int, int], seconds: float) -> Dict[str, Any]:
    used = (task.ticks - before.get(task.id, task.ticks)) / sample.TICKS_PER_SECOND / seconds
    return {
        "id": task.id,
        "name": task.name,
        "state": task.state,
        "wait": proc.wait_of(pid, task.id),
        "cpu_percent": round(100 * max(0.0, used)),
        "frames": [],
    }


def _bounded(dump: Dict[str, Any]) -> Dict[str, Any]:
    """Return a dump that is not too large to be sent.

    Else without all but the main threads; then without values and outer frames, too.
    """
    if len(to_json(dump)) > BYTES_LIMIT:
        for rank in dump["ranks"]:
            for process in rank["processes"]:
                del process["threads"][1:]
                process["missing"] = process["missing"] or "other threads: the dump is too large"
    if len(to_json(dump)) > BYTES_LIMIT:
        dump["communicators"] = dump.get("communicators", [])[:1]
        for rank in dump["ranks"]:
            rank["collectives"] = []
            del rank["processes"][FEW_PROCESSES:]
            for process in rank["processes"]:
                for thread in process["threads"]:
                    inner = thread["frames"][:FEW_FRAMES]
                    thread["frames"] = [{**frame, "locals": []} for frame in inner]
                process["missing"] = "values, outer frames, other processes: the dump is too large"
    return dump
