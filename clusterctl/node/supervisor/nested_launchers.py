"""Notices a launcher that a rank starts: each would begin a training of its own.

`launch` refuses one in the command and warns of one in a script that it can read. This finds the
others, such as one in a script that only the nodes have.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

from clusterctl.node.run.node_job import NodeJob
from clusterctl.node.run.processes import Process, ProcessKey, read_proc
from clusterctl.node.run.run_files import RunFiles
from clusterctl.node.supervisor.launcher_names import split_launcher

SCANS = 3
"""In how many scans a process is looked at: a shell may become a launcher by exec."""

ALLOWED = ("mpirun", "srun")
"""Launchers that a rank may start: they need not begin a training of their own."""


class NestedLaunchers:
    """Looks at the new processes of one run on this node until it finds one."""

    def __init__(self, record: RunFiles, job: NodeJob) -> None:
        self._record = record
        self._done = not job["launcher_argv"] and job["procs"] == 1
        """There is nothing to look for: a launcher may well be started once a node."""
        self._scans: Dict[ProcessKey, int] = {}

    def check(self, living: List[Process], ranks: List[Dict[str, Any]]) -> None:
        """Record an event if a new process is a launcher below a rank, or a rank itself.

        Args:
            living: all processes below the supervisor.
            ranks: their snapshots.
        """
        if self._done:
            return
        self._scans = {p.key: self._scans.get(p.key, 0) + 1 for p in living}
        new = [p for p in living if self._scans[p.key] <= SCANS and not p.uninterruptible]
        commands = {p.pid: read_proc(p.pid, "cmdline")[:4096] for p in new}
        names = {n: launcher_in(os.fsdecode(c).split("\0")) for n, c in commands.items()}
        if not any(names.values()):
            return
        parents = {process.pid: process.parent for process in living}
        numbers = {rank["pid"]: rank["rank"] for rank in ranks if rank["state"] == "running"}
        for pid, name in names.items():
            above = pid
            while above in parents and above not in numbers:
                above = parents[above]
            if name and above in numbers:  # or it is the run's own launcher
                rank = numbers[above]
                self._record.event("nested-launcher", rank=rank, pid=pid, launcher=name)
                self._done = True
                return


def launcher_in(words: List[str]) -> str:
    """Return the name of the launcher that runs with this argument list; empty: none does."""
    found = split_launcher(words)
    return found[0] if found and found[0] not in ALLOWED else ""
