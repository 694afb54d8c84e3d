"""Finds and kills the processes of a sandbox, and only those."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

STAMP = "CLUSTERCTL_SANDBOX"
"""Every process of a sandbox inherits the sandbox's folder in this variable."""
HOST_STAMP = "CLUSTERCTL_SANDBOX_HOST"
"""With the loopback backend: the host that a process belongs to."""

GONE_SECONDS = 60.0
"""Long, because a busy machine may need time to reap killed processes."""


def spawn(
    argv: list[str], *, environment: Mapping[str, str], log: Path, ready: int | None = None
) -> int:
    """Start a process in a new session, without a terminal, and return its pid.

    Args:
        argv: the program and its arguments.
        environment: its whole environment.
        log: file that its stderr (and stdout, unless `ready` takes it) is appended to.
        ready: descriptor that becomes its stdout.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 2 if ready is None else ready, 1),
    ]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsid=True)


def record(file: Path, pid: int) -> None:
    """Write a pid with its start time, to detect a reused pid."""
    file.write_text(f"{pid} {_began(pid)}\n")


def recorded(file: Path) -> int | None:
    """Return the pid in a file of `record` if the same process is still alive."""
    try:
        pid, began = file.read_text().split()
        return int(pid) if _began(int(pid)) == began and alive(int(pid)) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _began(pid: int) -> str:
    """Return the start time of a process; the value never changes.

    On Linux it is in ticks since boot. psutil adds the boot time, which jumps when the clock is set
    or corrected (proc(5): btime).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no Linux, or no such process
        return f"{psutil.Process(pid).create_time():.2f}"


def alive(pid: int) -> bool:
    """Tell whether a process is alive; a zombie is not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def stamped(root: Path, host: str | None = None) -> set[int]:
    """Return the processes with the stamp of a sandbox, or of one of its hosts."""
    found = set()
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get(STAMP) != str(root):
            continue
        if host is None or environment.get(HOST_STAMP) == host:
            found.add(process.pid)
    return found


def tree(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {pid, *(child.pid for child in children)}


def in_namespaces(kind: str, inodes: set[int]) -> set[int]:
    """Return the processes in one of these namespaces; `kind` is such as `net` or `pid`."""
    return {pid for pid in _pids() if namespace(pid, kind) in inodes}


def namespace(pid: int, kind: str) -> int | None:
    """Return the inode of a process's namespace; None if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino
    except OSError:
        return None


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def end(find: Callable[[], set[int]]) -> set[int]:
    """Kill the processes that `find` returns until none is left; return any survivors."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        left = {pid for pid in find() - {os.getpid()} if alive(pid)}
        if not left or time.monotonic() > until:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def send(pids: set[int], sign: signal.Signals) -> None:
    """Send a signal to processes; ignore those that have exited or belong to other users."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)
