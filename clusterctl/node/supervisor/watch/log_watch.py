"""Notes within 10 ms when a log grows now and then: `logs --timestamps` tells a step's time.

The kernel says which files are written to. Where it does not, such as with too many watches in
use, the times are as coarse as the look that is taken now and then anyway.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Set

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.run_files import RunFiles

PAUSE_SECONDS = 0.01
"""Between two looks: a rank may write a million times a second."""
LOOKS_SECOND, MOST_LOOKS = 10.0, 50.0
"""Looks per second that a run which prints all the time gets, and how many it may save up."""

_MODIFY = 0x2
_EVENTS = 65536


class LogWatch:
    """Has the times of one run's logs noted whenever they grow."""

    def __init__(self, loop: EventLoop, record: RunFiles) -> None:
        self._loop, self._record = loop, record
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: Set[str] = set()
        self._looks, self._looked = MOST_LOOKS, time.monotonic()
        if self._descriptor >= 0:
            self._listen()

    def look(self) -> None:
        """Note the times, and watch logs that are new."""
        self._record.log_times()
        if self._descriptor < 0:
            return
        for log in self._record.paths.logs():
            if log not in self._watched:
                path = os.fsencode(os.path.join(self._record.paths.folder, log))
                self._libc.inotify_add_watch(self._descriptor, path, ctypes.c_uint32(_MODIFY))
                self._watched.add(log)

    def _grown(self) -> None:
        os.read(self._descriptor, _EVENTS)
        self._record.log_times()
        self._loop.remove_descriptor(self._descriptor)
        now = time.monotonic()
        self._looks = min(MOST_LOOKS, self._looks + LOOKS_SECOND * (now - self._looked)) - 1
        self._looked = now
        pause = PAUSE_SECONDS if self._looks > 0 else 1 / LOOKS_SECOND
        self._loop.call_later(pause, self._listen)

    def _listen(self) -> None:
        self._loop.add_descriptor(self._descriptor, self._grown)
