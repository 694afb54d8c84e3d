"""What a run that holds no lock any more left on this machine: no other may start over it."""

from __future__ import annotations

import os
import re
import time
from typing import Dict, NamedTuple, Optional, Set

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import default_state_folder, run_folders
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import parse_environ
from clusterctl.node.run.processes.processes import ENV_LOCK, ENV_RUN_ID

EXIT_SECONDS = 3.0
"""How long a run that has just ended gets to exit."""
POLL_SECONDS = 0.05

_RUN = re.compile(rb"[a-z0-9][a-z0-9-]{0,63}")


class Leftover(NamedTuple):
    """A process of an older run."""

    run: str
    pid: int


def require_no_leftovers(job: NodeJob) -> None:
    """Refuse to start a job next to another run, or over its processes: they may hold the GPUs."""
    until = time.monotonic() + EXIT_SECONDS
    while True:
        # One that starts at this moment has processes first, and then its lock.
        holder = next(run_lock.lock_holders(run_lock.conflicting_sockets(job["lock"])), None)
        if holder is not None:
            raise run_lock.in_use_error(holder)
        found = find_leftover(job)
        if found is None:
            return
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    command = processes.command_of(found.pid)[:200]
    message = "processes of run %s are left: pid %d (%s)" % (found.run, found.pid, command)
    holder = {"run": found.run, "pid": found.pid}
    hint = "clusterctl stop " + found.run
    raise OperationError("busy", message, holder=holder, hint=hint)


def find_leftover(job: NodeJob) -> Optional[Leftover]:
    """Return a process of another run whose lock excludes this job's, except ancestors.

    Only this user's count, and what a run of this user recorded: as root, it may have become
    another user. Anyone can start a process with such an environment.
    """
    table = processes.process_table()
    stamp = ENV_LOCK + b"="
    stuck = set()
    for pid in sorted(set(table) - processes.ancestors(table)):
        if table[pid].exited:
            continue
        if table[pid].uninterruptible:
            stuck.add(table[pid].key)
            continue
        raw = processes.read_proc(pid, "environ")
        if stamp in raw:
            variables = parse_environ(raw)
            name = variables.get(ENV_RUN_ID, b"")
            theirs = os.fsdecode(variables.get(ENV_LOCK, b""))
            older = run_lock.conflict(theirs, job["lock"]) and name != job["run"].encode()
            if not (older and _RUN.fullmatch(name) and in_same_network_namespace(pid)):
                continue
            if is_ours(pid) or is_recorded(pid, name.decode(), job, table):
                return Leftover(name.decode(), pid)
    return find_recorded(stuck, job) if stuck else None


def is_ours(pid: int) -> bool:
    """Tell whether a process is this user's."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False  # it exited meanwhile


def is_recorded(pid: int, run: str, job: NodeJob, table: Dict[int, processes.Process]) -> bool:
    """Tell whether a run of clusterctl recorded a process, or one that it descends from."""
    from clusterctl.node.run.operations.status import RecordedProcesses  # noqa: PLC0415  (rarely needed)

    root = job.get("state") or default_state_folder()
    for paths in run_folders(root, job["cluster"], run):
        keys = RecordedProcesses(paths).read()
        roots = {known for known, start in keys if known in table and table[known].start == start}
        if pid in roots | processes.descendants(roots - processes.ancestors(table), table):
            return True
    return False


def in_same_network_namespace(pid: int) -> bool:
    """Tell whether a process is in our network namespace: each one has locks of its own."""
    try:
        return os.readlink("/proc/%d/ns/net" % pid) == os.readlink("/proc/self/ns/net")
    except OSError:
        return False  # it exited meanwhile, or is another user's


def find_recorded(stuck: Set[processes.ProcessKey], job: NodeJob) -> Optional[Leftover]:
    """Return one that an older run recorded: the environment of a stuck process may hang us too."""
    from clusterctl.node.run.operations.status import RecordedProcesses  # noqa: PLC0415  (rarely needed)

    for paths in run_folders(job.get("state") or default_state_folder(), job["cluster"]):
        for key in sorted(stuck.intersection(RecordedProcesses(paths).read())):
            older = read_json(paths.job)
            ours = (
                run_lock.conflict(str(older.get("lock")), job["lock"])
                and older.get("run") != job["run"]
            )
            if ours and in_same_network_namespace(key[0]):
                return Leftover(str(older["run"]), key[0])
    return None
