"""Notes within 10 ms when a log of a run grows, so that `logs --timestamps` tells a step's time.

The kernel says which files are written to. Where it does not, such as with too many watches in
use, the times are as coarse as the look that is taken now and then anyway.
"""

from __future__ import annotations

import ctypes
import os
from typing import Set

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.run_files import RunFiles

PAUSE_SECONDS = 0.01
"""Between two looks: a rank may write a million times a second."""

_MODIFY = 0x2
_EVENTS = 65536


class LogWatch:
    """Has the times of one run's logs noted whenever they grow."""

    def __init__(self, loop: EventLoop, record: RunFiles) -> None:
        self._loop, self._record = loop, record
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: Set[str] = set()

    def look(self) -> None:
        """Note the times, and watch logs that are new."""
        self._record.log_times()
        if self._descriptor < 0:
            return
        if not self._watched:
            self._listen()
        for log in self._record.paths.logs():
            if log not in self._watched:
                path = os.fsencode(os.path.join(self._record.paths.folder, log))
                self._libc.inotify_add_watch(self._descriptor, path, ctypes.c_uint32(_MODIFY))
                self._watched.add(log)

    def _grown(self) -> None:
        os.read(self._descriptor, _EVENTS)
        self._record.log_times()
        self._loop.remove_descriptor(self._descriptor)
        self._loop.call_later(PAUSE_SECONDS, self._listen)

    def _listen(self) -> None:
        self._loop.add_descriptor(self._descriptor, self._grown)
