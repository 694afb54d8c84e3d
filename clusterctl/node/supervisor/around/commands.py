"""Runs the job's commands on this node: `before` its ranks start, and `after` all of them ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from typing import Callable, Dict, Optional

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.file_io import read_end
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.supervisor.ranks.child_watcher import Status, code_and_signal
from clusterctl.node.supervisor.ranks.spawn import Spawner

LIMIT_SECONDS = 600.0
"""How long a command may take, if the job does not set it."""
KILL_SECONDS = 2.0
"""Between TERM and KILL of a command that is late, or in the way of a stop."""
SHOWN, TAIL = 200, 8192
"""Characters of the last line that are passed on, and bytes of the log where it is looked for."""


class AroundCommands:
    """The commands around the ranks; each in a process group of its own, one at a time."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        spawner: Spawner,
        record: RunFiles,
        watch: Callable[[int, Callable[[Status], None]], None],
    ) -> None:
        """Run nothing yet; `watch` calls back when a child has ended."""
        self._loop, self._job, self._spawner = loop, job, spawner
        self._record, self._watch = record, watch
        self._pid = 0
        self._late: Optional[Timer] = None
        self._why = ""

    @property
    def limit(self) -> float:
        """How many seconds one may take."""
        return self._job.get("before_after_timeout") or LIMIT_SECONDS

    def before(self, on_end: Callable[[str], None]) -> None:
        """Run `before`; `on_end` gets why the ranks must not start, nothing if they may."""
        self._record.event("before")
        self._run("before", self._job["before"] or "", {}, on_end)

    def after(self, state: str, then: Callable[[], None]) -> None:
        """Run `after`, if there is one; that it fails is noted, and changes nothing."""
        line = self._job.get("after")
        if not line:
            then()
            return

        def ended(why: str) -> None:
            if why:
                self._record.event("after-failed", message=why)
            then()

        self._run("after", line, {b"CLUSTERCTL_RUN_STATE": state.encode()}, ended)

    def stop(self) -> None:
        """End a command that runs."""
        if self._pid:
            self._end("it was stopped")

    def _run(
        self, what: str, line: str, more: Dict[bytes, bytes], on_end: Callable[[str], None]
    ) -> None:
        self._why = ""
        began, printed = time.monotonic(), self._write("%s: %s" % (what, line))
        try:
            self._pid = self._spawner.shell(line, more)
        except OSError as error:
            on_end("%s cannot be started: %s" % (what, error.strerror))
            return
        self._late = self._loop.call_later(
            self.limit, lambda: self._end("it did not end within %g s" % self.limit)
        )
        self._watch(self._pid, partial(self._ended, what, began, printed, on_end))

    def _end(self, why: str) -> None:
        """End the command's whole group: first politely."""
        self._why = why
        pid = self._pid
        _send(pid, signal.SIGTERM)
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_later(KILL_SECONDS, lambda: _send(pid, signal.SIGKILL))

    def _ended(
        self, what: str, began: float, printed: int, on_end: Callable[[str], None], status: Status
    ) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._why:
            _send(self._pid, signal.SIGKILL)  # what it had started
        self._pid = 0
        code, number = code_and_signal(status or 0)
        how = "was killed by signal %d" % number if number else "ended with exit code %d" % code
        last = self._last_line(printed) if code else ""
        self._write("%s %s after %.1f s" % (what, how, time.monotonic() - began))
        why = "%s: %s" % (what, self._why) if self._why else "%s %s" % (what, how)
        on_end("" if not code and not self._why else why + (": " + last if last else ""))

    def _last_line(self, printed: int) -> str:
        """Return what the command printed last."""
        from clusterctl.node.printed_cause import last_line  # noqa: PLC0415  (start-up counts)

        path = self._record.paths.launcher_log
        with contextlib.suppress(OSError):
            count = min(TAIL, os.stat(path).st_size - printed)
            lines = read_end(path, count).decode("utf-8", "replace").splitlines() if count else []
            return last_line(lines)[:SHOWN]
        return ""

    def _write(self, words: str) -> int:
        """Write a line into the node's log; return where the log ends then."""
        with contextlib.suppress(OSError):  # a full disk
            os.write(1, ("clusterctl: %s\n" % words).encode("utf-8", "replace"))
            return os.stat(self._record.paths.launcher_log).st_size
        return 0


def _send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
