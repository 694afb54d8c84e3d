"""Whether this node is fit for another attempt; each look runs in a child with a limit."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from clusterctl.node.agent.child_tasks import Child, gather, run_function
from clusterctl.node.file_io import read_json
from clusterctl.node.probe.kernel_log import read_kernel_log
from clusterctl.node.probe.path_probe import probe_path
from clusterctl.node.restart.blame import XIDS
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import RecordedProcesses
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.run.processes.foreign_gpu_use import foreign_holders
from clusterctl.node.run.processes.release_check import check_gpu_memory
from clusterctl.node.run.processes.usage import gpus
from clusterctl.node.run_lock import resources_of
from clusterctl.wire import from_json, to_json

CHECK_SECONDS = 20.0
"""A look that takes longer has found that something does not answer."""
ROOM, SMALL_DISK_PART = 256 << 20, 16
"""Free bytes that a folder must have, and which part of a disk that is small."""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,20})[^)]*\): (\d{1,5})(?:, (.*))?")

Checks = Dict[str, Optional[str]]
"""Name of a check → why the node is unfit; empty: it is fit; None: that is not known."""


def node_check(job: NodeJob, paths: NodePaths) -> Checks:
    """Check GPUs, paths, room, the kernel log and the clock of this node, in CHECK_SECONDS at most.

    It waits for its children: to be called in a child of the supervisor.
    """
    began = float(read_json(paths.supervisor).get("began") or 0.0)
    children = [
        run_function(name, _writer(look), CHECK_SECONDS)
        for name, look in _looks(job, paths, began).items()
    ]
    gather(children)
    return {child.key: _result(child) for child in children}


def _looks(job: NodeJob, paths: NodePaths, began: float) -> Dict[str, Callable[[], Optional[str]]]:
    looks: Dict[str, Callable[[], Optional[str]]] = {
        "clock": lambda: _clock(began),
        "state": lambda: _path(paths.folder, made=False),
        "workdir": lambda: _path(job["workdir"], made=False),
    }
    if job["checkpoints"]:
        looks["checkpoints"] = lambda: _path(_checkpoints_folder(job), made=True)
    if job["device"] == "cuda":
        looks["gpus"] = lambda: _gpus(job)
        looks["gpu-memory"] = lambda: _gpu_memory(job, paths)
        looks["xid"] = lambda: _xids(job, began)
    return looks


def _writer(look: Callable[[], Any]) -> Callable[[Callable[[bytes], None]], None]:
    return lambda write: write(to_json(look()))


def _result(child: Child) -> Optional[str]:
    if child.state == "timeout":
        return "%s: no answer within %g s" % (child.key, CHECK_SECONDS)
    if child.state != "ok" or child.exit_code != 0:
        return None
    reason = from_json(child.output)
    return reason if reason is None else str(reason)


def _checkpoints_folder(job: NodeJob) -> str:
    return os.path.join(job["workdir"], os.path.expanduser(job["checkpoints"]))


def _clock(began: float) -> str:
    now = time.time()
    return "" if now >= began else "its clock is %.0f s before the beginning" % (began - now)


def _path(path: str, *, made: bool) -> str:
    """Return why a folder cannot be written to, or has no room; `made`: the job makes it."""
    found = probe_path({"path": path, "write": True})
    if found["exists"] is False and not made:
        return "%s does not exist" % path
    if found.get("writable") is not True:
        return "%s cannot be written: %s" % (path, found.get("problem") or "no reason is known")
    least = min(ROOM, found["total"] // SMALL_DISK_PART)
    if found["free"] < least:
        return "%s has %d MiB left" % (path, found["free"] >> 20)
    return "" if found["free_files"] or not found["total_files"] else "%s has no inode left" % path


def _gpus(job: NodeJob) -> Optional[str]:
    """Return which GPUs are missing; None: no tool of NVIDIA's driver is here."""
    found = gpus()
    if found is None:
        return None if not os.path.exists("/proc/driver/nvidia") else "nvidia-smi does not answer"
    wanted = [name for name in resources_of(job["lock"]) if name.startswith("GPU-")]
    least = len(wanted) or 1
    return "" if len(found) >= least else "%d GPUs answer, expected %d" % (len(found), least)


def _gpu_memory(job: NodeJob, paths: NodePaths) -> Optional[str]:
    """Return what still holds memory that the attempts had."""
    memory = check_gpu_memory({**job}, {pid for pid, _ in RecordedProcesses(paths).read()})
    if memory.free is None:
        return None
    left = [*memory.unreleased, *foreign_holders(paths, memory.held)]
    return "; ".join("pid %(pid)d (%(cmd)s): %(why)s" % one for one in left[:3])


def _xids(job: NodeJob, began: float) -> Optional[str]:
    """Return the faults of GPUs that the kernel logged since the run began.

    None: it is not readable, or the machine has other runs, whose GPUs are not told from ours.
    """
    if resources_of(job["lock"]):
        return None
    answers: List[bytes] = []
    read_kernel_log(["NVRM: Xid"], answers.append)
    log = from_json(b"".join(answers))
    if "error" in log:
        return None
    return xids_since(log["lines"], uptime() - (time.time() - began))


def xids_since(lines: List[Tuple[float, str]], since: float) -> str:
    """Return the faults of GPUs in lines of the kernel log; times are seconds since boot."""
    found: Dict[str, None] = {}
    for at, text in lines:
        xid = _XID.search(text)
        if xid and at >= since and int(xid[2]) in XIDS and "Nonfatal" not in (xid[3] or ""):
            found["Xid %s of GPU %s" % (xid[2], xid[1])] = None
    return ", ".join(list(found)[:3])
