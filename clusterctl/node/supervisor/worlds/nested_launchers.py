"""Notices a launcher that a rank starts, and programs that start processes out of our sight.

Each launcher would begin a training of its own. `launch` refuses one in the command and warns of
one in a script that it can read. This finds the others, such as one in a script that only the nodes
have. What a job starts through SSH or in a container no search here finds.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set

from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes.environ_bytes import parse_environ
from clusterctl.node.run.processes.processes import Process, ProcessKey, read_proc
from clusterctl.node.supervisor.worlds.launcher_names import split_launcher

SCANS = 3
"""In how many scans a process is checked: a shell may become a launcher by exec."""

CONTAINERS = ("docker", "nerdctl")
"""Clients of a daemon: it, not they, starts the processes."""
STARTS = ("run", "exec", "start", "compose")
MOST_ELSEWHERE = 4
"""Programs of this kind that are named."""
SHOWN = 100

ALLOWED = ("mpirun", "srun")
"""Launchers that a rank may start: they need not begin a training of their own."""


class NestedLaunchers:
    """Looks at the new processes of one run on this node until it finds one."""

    def __init__(self, record: RunFiles, job: NodeJob) -> None:
        self._record = record
        self._done = not job["launcher_argv"] and job["procs"] == 1
        """There is nothing to look for: a launcher may well be started once a node."""
        self._scans: Dict[ProcessKey, int] = {}
        self._hosts = {line.split()[0] for line in job["hostfile"].splitlines() if line.strip()}
        self._hosts |= {job["master"]["node"], *job["workers"]}
        self.elsewhere: List[str] = []
        """Commands that started processes where no search looks."""
        self._container = bool(job["container"])

    def check(self, living: List[Process], ranks: List[Dict[str, Any]]) -> None:
        """Record an event if a new process is a launcher below a rank, or starts others elsewhere.

        Args:
            living: all processes below the supervisor.
            ranks: their snapshots.
        """
        self._scans = {p.key: self._scans.get(p.key, 0) + 1 for p in living}
        new = [p for p in living if self._scans[p.key] <= SCANS and not p.uninterruptible]
        commands = {p.pid: os.fsdecode(read_proc(p.pid, "cmdline")[:4096]).split("\0") for p in new}
        self._note_elsewhere(commands)
        names = {} if self._done else {n: launcher_in(words) for n, words in commands.items()}
        if not any(names.values()):
            return
        parents = {process.pid: process.parent for process in living}
        numbers = {rank["pid"]: rank["rank"] for rank in ranks if rank["state"] == "running"}
        for pid, name in names.items():
            above = pid
            while above in parents and above not in numbers:
                above = parents[above]
            # Elsewhere it is the run's own. Without RANK, the program meant it to start apart.
            if name and above in numbers and (above == pid or _has_rank(pid)):
                rank = numbers[above]
                self._record.event("nested-launcher", rank=rank, pid=pid, launcher=name)
                self._done = True
                return

    def _note_elsewhere(self, commands: Dict[int, List[str]]) -> None:
        """Record programs that start processes where we neither see nor end them."""
        for pid, words in commands.items():
            found = starts_elsewhere(words, self._hosts)
            if not found or (self._container and found.startswith(CONTAINERS)):
                continue  # the run's own containers are removed with it
            if found not in self.elsewhere and len(self.elsewhere) < MOST_ELSEWHERE:
                self.elsewhere.append(found)
                self._record.event("started-elsewhere", pid=pid, command=found)


def starts_elsewhere(words: List[str], hosts: Set[str]) -> str:
    """Return the beginning of a command that starts processes elsewhere; empty: it does not.

    To other hosts than the run's, people copy files and fetch code.
    """
    program = os.path.basename(words[0]) if words else ""
    if program == "ssh":
        there = any(word.rpartition("@")[2] in hosts for word in words[1:])
    elif program in CONTAINERS:
        there = any(word in STARTS for word in words[1:3])
    else:
        there = program in ("pdsh", "clush", "pssh")
    return " ".join([program, *words[1:]]).strip()[:SHOWN] if there else ""


def _has_rank(pid: int) -> bool:
    """Tell whether a process was started with the variables of a rank."""
    return b"RANK" in parse_environ(read_proc(pid, "environ"))


def launcher_in(words: List[str]) -> str:
    """Return the name of the launcher that runs with this argument list; empty: none does."""
    found = split_launcher(words)
    return found[0] if found and found[0] not in ALLOWED else ""
