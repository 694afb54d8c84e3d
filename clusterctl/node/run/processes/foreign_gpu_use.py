"""Processes that took GPU memory during a run and are not the run's: a container's, as a rule.

A script that calls `docker run` only starts a client. The container belongs to a daemon, so
nothing marks it as the run's. What gives it away is when it started.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.run_paths import NodePaths, end_time
from clusterctl.node.run.operations.status import supervisor_keys
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.boot import boot_id, uptime
from clusterctl.node.run.processes.processes import ENV_RUN_ID, Process


def foreign_holders(paths: NodePaths, held: Dict[int, str]) -> List[Dict[str, Any]]:
    """Return those of these holders that started while the run lived and may be of it.

    `held`: what each process holds on the GPUs, by pid; none of the run's own is left.
    """
    saved = read_json(paths.supervisor)
    if saved.get("boot_id") != boot_id():
        return []
    began = min(start for _, start in supervisor_keys(saved))
    ended = end_time(read_json(paths.end))
    found = []
    for pid in sorted(held):
        process = processes.read(pid)
        if process is None or process.exited or process.start < began:
            continue
        if not started_after(process, ended) and may_be_of_run(process):
            why = "holds %s; not of the run's processes (a container?)" % held[pid]
            found.append({"pid": pid, "cmd": processes.command_of(pid)[:200], "why": why})
    return found


def started_after(process: Process, moment: Optional[float]) -> bool:
    """Tell whether a process started after a time of day; None: it never comes."""
    age = uptime() - process.start / os.sysconf("SC_CLK_TCK")
    return moment is not None and time.time() - age > moment


def may_be_of_run(process: Process) -> bool:
    """Tell whether a process may come from a run, though nothing marks it as one of a run.

    Another user's process comes from it only through a daemon, which means a container.
    """
    if process.uninterruptible:
        return True  # to read its environment could hang us
    try:
        ours = os.stat("/proc/%d" % process.pid).st_uid == os.getuid()
    except OSError:
        return False
    entries = processes.read_proc(process.pid, "environ").split(b"\0")
    marked = any(entry.startswith(ENV_RUN_ID + b"=") for entry in entries)
    return not marked and (ours or in_container(process.pid))


def in_container(pid: int) -> bool:
    """Tell whether a process is in a pid namespace below ours."""
    return len(processes.read_status(pid).get(b"NSpid", b"").split()) > 1  # its pid here and there
