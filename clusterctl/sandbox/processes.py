"""Finds and kills the processes of a sandbox, and only those."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import psutil

from clusterctl.errors import ClusterError

STAMP = "CLUSTERCTL_SANDBOX"
"""Every process of a sandbox inherits the sandbox's folder in this variable."""
HOST_STAMP = "CLUSTERCTL_SANDBOX_HOST"
"""With the loopback backend: the host that a process belongs to."""

START_SECONDS = 20.0
GONE_SECONDS = 60.0
"""Long, because a busy machine may need time to reap killed processes."""


def spawn(
    argv: list[str], *, environment: Mapping[str, str], log: Path, stdout: int | None = None
) -> int:
    """Start a process in a new session, without a terminal, and return its pid.

    Args:
        log: file that its stderr is appended to, and its stdout unless it has one.
        stdout: descriptor that becomes its stdout.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 2 if stdout is None else stdout, 1),
    ]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsid=True)


class StartingProcesses:
    """Processes that write to their stdout how far their start is; use as a context manager."""

    def __init__(self) -> None:
        self._pipes: dict[int, tuple[str, Path]] = {}
        """The end that is read of each process's stdout, with its name and its log."""
        self._output: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            os.close(pipe)

    def spawn(
        self, name: str, argv: list[str], *, environment: Mapping[str, str], log: Path
    ) -> int:
        """Start a process and return its pid; `name` is for messages."""
        ours, theirs = os.pipe()
        self._pipes[ours], self._output[ours] = (name, log), ""
        try:
            return spawn(argv, environment=environment, log=log, stdout=theirs)
        finally:
            os.close(theirs)

    def wait_for(self, word: str) -> None:
        """Wait until every process has written the word."""
        deadline = time.monotonic() + START_SECONDS
        while silent := [pipe for pipe, text in self._output.items() if word not in text]:
            readable, _, _ = select.select(silent, [], [], max(0.0, deadline - time.monotonic()))
            for pipe in readable or silent[:1]:
                data = os.read(pipe, 64).decode() if readable else ""
                if not data:
                    name, log = self._pipes[pipe]
                    raise ClusterError(f"{name} did not start: {log.read_text().strip()}")
                self._output[pipe] += data


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
    return {pid for pid in psutil.pids() if namespace(pid, kind) in inodes}


def namespace(pid: int, kind: str) -> int | None:
    """Return the inode of a process's namespace; None if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino
    except OSError:
        return None


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
