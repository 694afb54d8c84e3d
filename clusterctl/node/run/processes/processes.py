"""What /proc tells of processes, and how those of one run are found and ended.

A run's processes are its supervisor's descendants, what carries the run's stamp in its
environment, what was recorded while it lived, its cgroup where it has one of its own, and all
descendants of these. Titles and environments can be wiped, so no single sign is enough.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
# What each call about a living run imports: `typing`, `signal` and `ctypes` would take it longer
# than all the rest.
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Set

PR_SET_CHILD_SUBREAPER = 36

TERM_TO_KILL = 2.0
"""Seconds between TERM and KILL at the end of a grace."""
STAT_BYTES = 4096
"""More than a line of /proc/PID/stat has: 52 numbers and a name."""
KILL_TIMEOUT = 10.0
"""Seconds of KILL after which what is left is stuck in the kernel."""

ENV_RUN_ID = b"CLUSTERCTL_RUN_ID"
ENV_NODE = b"CLUSTERCTL_NODE"
ENV_LOCK = b"CLUSTERCTL_LOCK"
"""By it `start` finds what a run that has no lock any more left on this machine."""

ProcessKey = tuple[int, int]
"""A process for certain: pid and start time in ticks since boot. A pid alone is used again."""


class Process:
    """One line of /proc/PID/stat."""

    __slots__ = ("exit_status", "group", "parent", "pid", "start", "state", "threads", "ticks")

    def __init__(
        self,
        pid: int,
        parent: int,
        group: int,
        start: int,
        state: str,
        threads: int,
        exit_status: int,
        ticks: int = 0,
    ) -> None:
        self.pid, self.parent, self.group, self.start = pid, parent, group, start
        self.state, self.threads = state, threads
        self.exit_status = exit_status
        """As `waitpid` gives it; meaningful for a zombie only."""
        self.ticks = ticks
        """CPU time of all its threads, in the kernel's ticks."""

    @property
    def key(self) -> ProcessKey:
        """Return what tells this process from a later one with its pid."""
        return self.pid, self.start

    @property
    def exited(self) -> bool:
        """It runs no more: a zombie holds nothing but its number.

        A leader that ended before its threads shows as a zombie while they run on.
        """
        return self.state in "ZXx" and self.threads <= 1

    @property
    def uninterruptible(self) -> bool:
        """It waits in the kernel and cannot be ended before that is over."""
        return self.state == "D"


def read(pid: int) -> Optional[Process]:
    """Return a process, or None if there is none.

    Raises:
        OSError: it cannot be checked now (no descriptor is left); the process may well be there.
    """
    try:
        # All processes are read again and again: a file object would take half as long again.
        file = os.open("/proc/%d/stat" % pid, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(file, STAT_BYTES)
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last with hidepid=1
        return None
    # The name, in brackets, may hold anything, brackets and newlines too.
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        start=int(fields[19]),
        state=fields[0].decode(),
        threads=int(fields[17]),
        exit_status=int(fields[49]),
        ticks=int(fields[11]) + int(fields[12]),
    )


def read_proc(pid: int, name: str) -> bytes:
    """Return what a file in /proc says of a process; nothing if that cannot be read.

    To read the environment or the arguments of a process stuck in the kernel can hang the reader.
    """
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_status(pid: int) -> Dict[bytes, bytes]:
    """Return the fields of /proc/PID/status; none of a process that has exited."""
    return dict(
        line.split(b":", 1) for line in read_proc(pid, "status").splitlines() if b":" in line
    )


def process_table() -> Dict[int, Process]:
    """Return all processes by pid; raise OSError if it cannot be checked now."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def key_of(pid: int) -> ProcessKey:
    """Return the key of a process that exists."""
    process = read(pid)
    return pid, process.start if process is not None else 0


def alive(key: ProcessKey) -> bool:
    """Tell whether this very process still runs."""
    process = read(key[0])
    return process is not None and process.start == key[1] and not process.exited


def descendants(roots: Iterable[int], table: Dict[int, Process]) -> Set[int]:
    """Return the pids below `roots`, without the roots themselves."""
    children = children_of(table)
    found: Set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found.add(child.pid)
                waiting.append(child.pid)
    return found


def children_of(table: Dict[int, Process]) -> Dict[int, List[Process]]:
    """Return the children of each process that has any, by its pid."""
    children: Dict[int, List[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    return children


def run_environment(run: str, node: str) -> List[bytes]:
    """Return the environment entries by which a run's processes are known on this node."""
    return [ENV_RUN_ID + b"=" + run.encode(), ENV_NODE + b"=" + node.encode()]


def with_environment(environment: Iterable[bytes], table: Dict[int, Process]) -> Set[int]:
    """Return the pids whose environment has all of these `NAME=value` entries."""
    wanted = set(environment)
    readable = [p.pid for p in table.values() if not p.exited and not p.uninterruptible]
    return {pid for pid in readable if wanted <= set(read_proc(pid, "environ").split(b"\0"))}


def of_run(
    *, environment: Iterable[bytes], recorded: Iterable[ProcessKey], cgroup: str
) -> List[Process]:
    """Return the living processes of a run on this node, but never the one that asks.

    Nor those that it descends from, pid 1 the last of them: whatever their environment says, they
    are not the run's to be ended.

    Args:
        environment: entries of the environment that a process of the run has.
        recorded: processes that were seen to be the run's, its supervisor among them.
        cgroup: the run's own cgroup, empty for none.
    """
    table = process_table()
    own = {p for p, start in recorded if p in table and table[p].start == start}
    own |= with_environment(environment, table)
    own |= in_cgroup(cgroup)
    own |= descendants(own - ancestors(table), table)
    own -= ancestors(table)
    return [table[pid] for pid in sorted(own) if pid in table and not table[pid].exited]


def ancestors(table: Dict[int, Process]) -> Set[int]:
    """Return this process and all that it descends from."""
    found = {1}
    pid = os.getpid()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def become_subreaper() -> None:
    """Let this process, not pid 1, become the parent of what its descendants abandon."""
    import ctypes  # noqa: PLC0415  (see above)

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_all() -> None:
    """Take in every child that has ended, so that none stays a zombie."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def living_descendants() -> List[Process]:
    """Return the processes that descend from this one and still run."""
    table = process_table()
    below = descendants([os.getpid()], table)
    return [table[pid] for pid in sorted(below) if not table[pid].exited]


def in_cgroup(cgroup: str) -> Set[int]:
    """Return the pids of a cgroup (version 2), none if it does not exist."""
    if not cgroup:
        return set()
    try:
        with open("/sys/fs/cgroup" + cgroup + "/cgroup.procs") as file:
            return {int(line) for line in file}
    except OSError:
        return set()


def send(key: ProcessKey, number: int) -> str:
    """Send a signal to this very process; return why it could not be, empty for done.

    A process that has exited counts as done.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return _send_through_pidfd(key, number)
        if alive(key):
            os.kill(key[0], number)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error.strerror)
    return ""


def _send_through_pidfd(key: ProcessKey, number: int) -> str:
    import signal  # noqa: PLC0415  (see above)

    try:
        pidfd = os.pidfd_open(key[0])  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        if not isinstance(error, ProcessLookupError) and alive(key):
            os.kill(key[0], number)  # a kernel older than the Python
        return ""
    try:
        # The descriptor holds the process: what is true of it now stays true.
        if alive(key):
            signal.pidfd_send_signal(pidfd, number)  # type: ignore[attr-defined,unused-ignore]
    finally:
        os.close(pidfd)
    return ""


def send_all(left: List[Process], number: int) -> None:
    """Send a signal to each of these processes, stopped ones too."""
    import signal  # noqa: PLC0415  (see above)

    for process in left:
        send(process.key, number)
        if process.state == "T" and number != signal.SIGKILL:
            send(process.key, signal.SIGCONT)


def signal_number(name: str) -> int:
    """Return the number of a signal as people write it: `TERM`, `SIGTERM`, `usr1`."""
    from signal import Signals  # noqa: PLC0415  (see above)

    name = name.upper()
    return int(Signals[name if name.startswith("SIG") else "SIG" + name])


def command_of(pid: int) -> str:
    """Return a process's command line for display, or its name where it has none."""
    process = read(pid)
    if process is None:
        return ""
    raw = b"" if process.uninterruptible else read_proc(pid, "cmdline")[:4096].rstrip(b"\0")
    if raw:
        return raw.replace(b"\0", b" ").decode("utf-8", "backslashreplace")
    name = read_proc(pid, "comm").strip().decode("utf-8", "backslashreplace")
    return "[%s]" % name if name else ""
