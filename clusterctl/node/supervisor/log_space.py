"""Keeps a run's logs from using up the disk: when room gets low, their oldest bytes are dropped.

A `print` on a full disk fails, and training ends with it. A hole at the head of a log gives its
room back and moves no offset. `tail` skips the hole by the offset in a file next to the log.

A log that another program cut off, such as `> 0.log` to make room, becomes such a log with a hole:
else its followers would see no line until it is as long as before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Dict, Optional, Set, Tuple

from clusterctl.node.file_io import overwrite_start
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import dropped_of

LOG_LIMIT = 16 << 30
"""Bytes on the disk that one log may have, however much room there is."""
LOW_WATER, CRITICAL = 1 << 30, 256 << 20
"""Free bytes: below the first an event warns, below the second the oldest bytes are dropped.

A small disk has lower limits.
"""
MIN_KEPT = 16 << 20
"""The newest bytes of each log, which are never dropped."""
MOST_SINCE = 64 << 10
"""Of a log that was cut off: if it is longer than this by now, what it has may be its old head."""

_BLOCK = 4096
_HOLE = 0x03
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE."""


class LogSpace:
    """Looks after the logs of one run on this node."""

    def __init__(self, record: RunFiles, limit: int = LOG_LIMIT) -> None:
        self._record, self._folder = record, record.paths.folder
        self._limit = limit
        self._dropped: Dict[str, int] = {}
        self._warned = False
        self._seen: Dict[str, Tuple[int, int]] = {}
        """Inode and size of each log when it was last well."""
        self._lost: Set[str] = set()

    def check(self) -> None:
        """Warn when room is low, and drop what has to be dropped."""
        try:
            logs: Dict[str, int] = {}
            for log in dict.fromkeys([*self._record.paths.logs(), *self._seen]):
                with contextlib.suppress(OSError):  # no room for its offset: others can give some
                    logs[log] = self._allocated(log)
            for log, size in logs.items():
                if size > self._limit:
                    self._drop(log, self._limit // 2, "it is larger than its limit", None)
            disk = os.statvfs(self._folder)
            total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
            self._warn(free, min(LOW_WATER, total // 8))
            if logs and free < min(CRITICAL, total // 16):
                log = max(logs, key=lambda each: logs[each])
                keep = max(min(MIN_KEPT, total // 64), logs[log] // 2)
                self._drop(log, keep, "its disk is nearly full", free)
        except OSError:
            return  # the folder was deleted, or a log is not there yet

    def _warn(self, free: int, low: int) -> None:
        if free >= 2 * low:
            self._warned = False
        elif free < low and not self._warned:
            self._warned = True
            message = "little room is left for the logs in %s" % self._folder
            self._record.event("room-low", message=message, free_bytes=free)

    def _allocated(self, log: str) -> int:
        if log not in self._dropped:
            # Now, as on a full disk there is no room for a new file.
            self._write_dropped(log, self._dropped_before(log))
        found: Optional[os.stat_result] = None
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(os.path.join(self._folder, log))
        self._compare(log, found)
        return found.st_blocks * 512 if found else 0

    def _compare(self, log: str, found: Optional[os.stat_result]) -> None:
        """Repair a log that another program cut off, and tell of one that it took away."""
        inode, size = self._seen.get(log, (0, 0))
        if inode:  # who looks for lines may have seen it longer since
            size = max(size, self._record.size_of(log))
        if found and (not inode or (found.st_ino == inode and found.st_size >= size)):
            self._seen[log] = found.st_ino, found.st_size
        elif found and found.st_ino == inode:
            self._restore_size(log, size)
        elif inode and log not in self._lost and os.path.isdir(self._folder):
            self._lost.add(log)
            message = "%s was deleted or moved: what is printed there now is lost" % log
            self._record.event("log-lost", message=message, file=log)

    def _restore_size(self, log: str, until: int) -> None:
        """Put what was written since behind a hole as long as the log was."""
        path = os.path.join(self._folder, log)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            since = os.pread(descriptor, MOST_SINCE + 1, 0)
            self._write_dropped(log, until)
            os.ftruncate(descriptor, until)
            if len(since) <= MOST_SINCE:
                os.write(descriptor, since)
        finally:
            os.close(descriptor)
        message = "another program cut %s off, which had %d bytes" % (log, until)
        self._record.event("log-dropped", message=message, file=log, until=until)

    def _dropped_before(self, log: str) -> int:
        """Return up to where an earlier attempt dropped a log."""
        try:
            with open(os.path.join(self._folder, dropped_of(log)), "rb") as file:
                return int(file.read(32) or 0)
        except (OSError, ValueError):  # there is none; a power failure leaves zeros
            return 0

    def _write_dropped(self, log: str, until: int) -> None:
        overwrite_start(os.path.join(self._folder, dropped_of(log)), b"%020d\n" % until)
        self._dropped[log] = until

    def _drop(self, log: str, keep: int, why: str, free: Optional[int]) -> None:
        path = os.path.join(self._folder, log)
        until = (os.stat(path).st_size - keep) // _BLOCK * _BLOCK
        before = self._dropped[log]
        if until - before < max(_BLOCK, keep // 4):  # else every look would drop a little
            return
        # The offset comes first: a reader must not take the hole's zeros for output.
        self._write_dropped(log, until)
        message = "dropped the oldest %d bytes of %s: %s" % (until - before, log, why)
        message += punch_hole(path, until)
        self._record.event("log-dropped", message=message, file=log, until=until, free_bytes=free)


def punch_hole(path: str, until: int) -> str:
    """Give a file's room back from its beginning; return why not, empty for done."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        start, length = ctypes.c_int64(0), ctypes.c_int64(until)
        if libc.fallocate(descriptor, _HOLE, start, length) == 0:
            return ""
    finally:
        os.close(descriptor)
    return " (its room could not be given back: %s)" % os.strerror(ctypes.get_errno())
