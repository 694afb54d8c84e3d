"""Finding and ending processes that belong to a sandbox, and only those."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

STAMP = "CLUSTERCTL_SANDBOX"
"""Every process that a sandbox starts carries its folder in this variable, and hands it on."""
HOST_STAMP = "CLUSTERCTL_SANDBOX_HOST"
"""On the loopback backend: which host of the sandbox a process belongs to."""

GONE_SECONDS = 60.0
"""Long: the machine may be busy with other things than what was killed."""


def spawn(
    argv: list[str], *, environment: Mapping[str, str], log: Path, ready: int | None = None
) -> int:
    """Start a process in a session of its own, with no terminal, and return its pid.

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
    """Write a pid with its start time, so that a reused pid is never taken for ours."""
    file.write_text(f"{pid} {_began(pid)}\n")


def recorded(file: Path) -> int | None:
    """Return the pid in a file made by `record` if that very process still lives."""
    try:
        pid, began = file.read_text().split()
        return int(pid) if _began(int(pid)) == began and alive(int(pid)) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _began(pid: int) -> str:
    """Return when a process began, in a form that is the same whenever it is asked for.

    On Linux in ticks since the machine's start: psutil adds the time of that start, which the
    kernel reckons from the clock, so that it jumps when that is set or corrected (proc(5): btime).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no Linux, or no such process
        return f"{psutil.Process(pid).create_time():.2f}"


def alive(pid: int) -> bool:
    """Say whether a process lives; one that has ended but was not collected does not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def stamped(root: Path, host: str | None = None) -> set[int]:
    """Return the processes that carry a sandbox's stamp (and a host's, where one is named)."""
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
    """Return the processes whose namespace of a kind (`net`, `pid`) is one of these."""
    return {pid for pid in _pids() if namespace(pid, kind) in inodes}


def namespace(pid: int, kind: str) -> int | None:
    """Return the inode of a process's namespace; None where it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino
    except OSError:
        return None


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def end(find: Callable[[], set[int]]) -> set[int]:
    """Kill what `find` finds until it finds nothing; return what could not be ended."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        left = {pid for pid in find() - {os.getpid()} if alive(pid)}
        if not left or time.monotonic() > until:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def send(pids: set[int], sign: signal.Signals) -> None:
    """Send a signal to processes, of which some may have just gone, or be another user's."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)
