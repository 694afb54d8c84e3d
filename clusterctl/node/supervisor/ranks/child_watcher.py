"""Who has died, and how, known at once: our children, those we adopt, and children of others."""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict, Optional, Tuple

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import ProcessKey

Status = Optional[int]
"""As `waitpid` gives it; None where only the parent could learn it, and did so before us."""

POLL_SECONDS = 0.05
"""How often to look where the kernel has no pidfd (before Linux 5.3)."""


class ChildWatcher:
    """Calls back once for each process of interest, when it has ended."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._callbacks: Dict[int, Callable[[Status], None]] = {}
        self._pidfds: Dict[int, int] = {}
        self._polled: Dict[int, ProcessKey] = {}
        loop.on_signal(signal.SIGCHLD, self.reap)

    def watch_child(self, pid: int, callback: Callable[[Status], None]) -> None:
        """Call back when a direct child has ended; the status is certain."""
        self._callbacks[pid] = callback

    def watch_other(self, key: ProcessKey, callback: Callable[[Status], None]) -> None:
        """Call back when another process's child has ended; its status may be lost."""
        pid = key[0]
        self._callbacks[pid] = callback
        try:
            pidfd = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
        except (AttributeError, OSError):
            if not self._polled:
                self._loop.call_later(POLL_SECONDS, self._poll)
            self._polled[pid] = key
            return
        self._pidfds[pid] = pidfd
        self._loop.add_descriptor(pidfd, lambda: self._ended_elsewhere(pid))

    def _ended_elsewhere(self, pid: int) -> None:
        # Until its parent has asked, a zombie shows how it ended.
        try:
            process = processes.read(pid)
        except OSError:
            process = None  # it cannot be checked now, so how it ended is unknown
        zombie = process is not None and process.state == "Z"
        self._over(pid, process.exit_status if process is not None and zombie else None)

    def _poll(self) -> None:
        for pid, key in list(self._polled.items()):
            if not processes.alive(key):
                self._ended_elsewhere(pid)
        if self._polled:
            self._loop.call_later(POLL_SECONDS, self._poll)

    def reap(self) -> None:
        """Take in every child that has ended, and call back for each."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._over(pid, status)

    def _over(self, pid: int, status: Status) -> None:
        self._polled.pop(pid, None)
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            self._loop.remove_descriptor(pidfd)
            os.close(pidfd)
        callback = self._callbacks.pop(pid, None)
        if callback is not None:
            callback(status)


def code_and_signal(status: int) -> Tuple[int, Optional[int]]:
    """Return a status as an exit code (128+n for signal n, as shells do) and that signal."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
