"""Keeps the note by which runs of other inventories see that this one writes to a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import partial
from typing import Any, Callable, Dict, List

from clusterctl.node.checkpoints.writer_notes import TOUCH_SECONDS, keep_note
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.processes.processes import Process
from clusterctl.node.supervisor.apart import run_apart

SECONDS = 30.0
_NEVER = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)
END_SECONDS = 1.0
"""The storage may hang: the run's end does not wait longer for it."""


class FolderNote:
    """The note of a run's master; each write is done apart, one after the other."""

    def __init__(self, loop: EventLoop, job: NodeJob, began: Callable[[], float]) -> None:
        """Do nothing yet; `began` returns when the run did, by this node's clock."""
        self._loop, self._job, self._began = loop, job, began
        self._needed = job["node_rank"] == 0 and bool(job.get("checkpoints"))
        self._pid = 0

    def start(self) -> None:
        """Write it now and then."""
        if self._needed:
            self._loop.call_every(TOUCH_SECONDS, self._touch)

    def end(self, then: Callable[[], None]) -> None:
        """Note that the run is over, and then do something."""
        if not self._needed or self._pid or not self._write(over=True, then=then):
            then()

    def without(self, living: List[Process]) -> List[Process]:
        """Return these processes without the one that writes."""
        return [process for process in living if process.pid != self._pid]

    def _touch(self) -> None:
        if self._needed and not self._pid:
            self._write(over=False, then=lambda: None)

    def _write(self, *, over: bool, then: Callable[[], None]) -> bool:
        def done(told: Dict[str, Any]) -> None:
            self._pid, self._needed = 0, told.get("kept", True)
            then()

        work = partial(_note, self._job, time.time() - self._began(), over=over)
        with contextlib.suppress(OSError):
            seconds = END_SECONDS if over else SECONDS
            self._pid = run_apart(self._loop, work, done, seconds=seconds)
            return True
        return False


def _note(job: NodeJob, age: float, *, over: bool) -> Dict[str, Any]:
    about = {
        "name": job.get("name") or "",
        "cluster": job["cluster"],
        "user": str(job.get("user") or ""),
        "host": os.uname().nodename,
    }
    where = job["workdir"], job["checkpoints"], job["run"]
    try:
        return {"kept": keep_note(*where, age=age, over=over, about=about)}
    except OSError as error:
        # Any other failure may pass.
        return {"kept": False} if error.errno in _NEVER else {}
