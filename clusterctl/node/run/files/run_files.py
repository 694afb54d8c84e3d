"""The files that a supervisor keeps of its run: whole or not at all, and never in its way.

A full disk or a folder deleted under a run must not end it: what cannot be written is kept and
tried again, and room for the end is reserved at the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Set

from clusterctl.node.file_io import find_end, overwrite_start
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, NodePaths, times_of
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.run.processes.processes import ProcessKey, alive
from clusterctl.own_files import remove_unfinished, replace_file

RESERVE = 65536
MAX_WAITING_EVENTS = 10000
"""Events that are kept for a disk that has no room."""
MAX_PROCESSES, FIRST_PROCESSES = 4096, 512
"""Processes to remember, and how many of the first: the ranks, whose GPU memory is looked for."""
MAX_TIMES = 8192
"""Lines of a log's times, after which the older ones are thinned."""
TIMES_PRECISION = 200
"""Times are kept to this part of their age: of a week about 2,000 lines are left."""


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is there whole or as before.

    Without fsync: on a disk that is busy with a checkpoint that can take longer than a run has
    time to react.

    Raises:
        OSError: it could not be written; nothing has changed.
    """
    replace_file(path, json.dumps(value, indent=1).encode() + b"\n")


def thin_times(lines: List[bytes], now: float) -> List[bytes]:
    """Return the lines of a log's times that matter: the older, the fewer; never the last out."""
    kept: List[bytes] = []
    latest = 0.0
    for line in lines:
        try:
            written = float(line.split()[0])
        except (ValueError, IndexError):
            continue  # a power failure leaves zeros
        if written < latest or written - latest >= (now - written) / TIMES_PRECISION:
            latest = written
            kept.append(line)
    if lines and kept[-1:] != lines[-1:]:
        kept.append(lines[-1])
    return kept


class RunFiles:
    """The writing side, of the one supervisor."""

    def __init__(self, paths: NodePaths) -> None:
        self.paths = paths
        self._events: List[Dict[str, Any]] = []
        self._snapshot: Optional[Dict[str, Any]] = None
        self._unwritten: List[ProcessKey] = []
        self._known: Dict[ProcessKey, bool] = {}
        self._sizes: Dict[str, int] = {}
        self._times: Dict[str, int] = {}
        """Lines of each log's times."""
        self._begin: Dict[str, int] = {}
        """By log: where this attempt begins in it; of the first one nothing is here."""

    def begin_attempt(self) -> None:
        """Note where the logs are now: what is in them was printed by earlier attempts."""
        for log in self.paths.logs():
            path = os.path.join(self.paths.folder, log)
            with contextlib.suppress(OSError), open(path, "r+b", buffering=0) as file:
                size = self._begin[log] = self._sizes[log] = file.seek(0, os.SEEK_END)
                # What was killed within a line must not begin that of another.
                file.seek(max(0, size - 1))
                if file.read(1) not in (b"", b"\n"):
                    self._begin[log] = self._sizes[log] = size + (file.write(b"\n") or 0)

    def begins_at(self, log: str) -> int:
        """Return where this attempt begins in a log."""
        return self._begin.get(log, 0)

    def log_end(self, log: str, count: int) -> bytes:
        """Return at most so many last bytes of what this attempt has written to a log."""
        begin, found = find_end(os.path.join(self.paths.folder, log), count)
        return found[max(0, self.begins_at(log) - begin) :]

    def reserve_space(self) -> None:
        """Set room aside for the end; raise OSError if there is none even now."""
        descriptor = os.open(self.paths.reserve, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE)
        finally:
            os.close(descriptor)

    def keep_fresh(self) -> None:
        """Let no cleaner take a file for old that the run still needs.

        systemd-tmpfiles minds the guard's lock; tmpreaper, tmpwatch and `find` go by the times. A
        log keeps the time of its last line, which `status` shows.
        """
        now = time.time()
        for folder, below, names in os.walk(self.paths.folder):
            links = [name for name in below if os.path.islink(os.path.join(folder, name))]
            with contextlib.suppress(OSError):
                remove_unfinished(folder)
            for name in [*names, *links]:
                path = os.path.join(folder, name)
                if name.endswith(".new"):
                    continue
                log = folder != self.paths.folder or name == LAUNCHER_LOG
                with contextlib.suppress(OSError):
                    written = os.lstat(path).st_mtime if log else now
                    os.utime(path, (now, written), follow_symlinks=False)

    def event(self, kind: str, **details: object) -> None:
        """Note that something happened, now."""
        if len(self._events) < MAX_WAITING_EVENTS:
            self._events.append({"time": time.time(), "kind": kind, **details})
        self.flush()

    def write_snapshot(self, value: Dict[str, Any]) -> None:
        """Replace supervisor.json."""
        self._snapshot = value
        self.flush()

    def record_processes(self, keys: List[ProcessKey]) -> None:
        """Remember processes as the run's, for a later process that must end it."""
        new = [key for key in keys if key not in self._known]
        self._known.update(dict.fromkeys(new, True))
        self._unwritten += new
        self.flush()
        if len(self._known) > MAX_PROCESSES:
            self._forget_ended(set(keys))

    def _forget_ended(self, living: Set[ProcessKey]) -> None:
        """Forget most of those that have ended: a job may start a process a second for weeks."""
        kept = [
            m for n, m in enumerate(self._known) if n < FIRST_PROCESSES or m in living or alive(m)
        ]
        try:
            replace_file(self.paths.processes, b"".join(b"%d %d\n" % key for key in kept))
        except OSError:
            return  # with the next scan
        self._known, self._unwritten = dict.fromkeys(kept, True), []

    def flush(self) -> None:
        """Write what waits; what cannot be written keeps waiting."""
        try:
            if self._events:
                lines = b"".join(json.dumps(e).encode() + b"\n" for e in self._events)
                append_whole(self.paths.events, lines)
                self._events = []
            if self._unwritten:
                append_whole(
                    self.paths.processes, b"".join(b"%d %d\n" % key for key in self._unwritten)
                )
                self._unwritten = []
            if self._snapshot is not None:
                write_json(self.paths.supervisor, self._snapshot)
                self._snapshot = None
        except OSError:
            return

    def heartbeat(self) -> None:
        """Say that the supervisor lives, in room that the file already has."""
        try:
            overwrite_start(self.paths.heartbeat, b"%020.3f\n" % uptime())
        except OSError:
            return

    def size_of(self, log: str) -> int:
        """Return the largest size of a log that was noted."""
        return self._sizes.get(log, 0)

    def log_times(self) -> None:
        """Record how each log grew, as lines `unix time, size` in a file next to it."""
        now = time.time()
        for log in self.paths.logs():
            path = os.path.join(self.paths.folder, log)
            try:
                size = os.stat(path).st_size
                if size > self._sizes.get(log, 0):  # one that was cut off is repaired soon
                    append_whole(times_of(path), b"%.3f %d\n" % (now, size))
                    self._sizes[log] = size
                    self._times[log] = self._times.get(log, 0) + 1
                    if self._times[log] > MAX_TIMES:
                        self._times[log] = _thin(times_of(path), now)
            except OSError:
                continue

    def end(self, value: Dict[str, Any]) -> bool:
        """Write end.json, into the reserved room if there is no other; False: not even that.

        A folder that was deleted takes nothing any more, and needs nothing.
        """
        self.flush()
        if not os.path.isdir(self.paths.folder):
            return True
        for _ in range(2):
            try:
                write_json(self.paths.end, value)
            except OSError:
                _remove(self.paths.reserve)
                continue
            _remove(self.paths.reserve)
            self.flush()
            return True
        return False


def append_whole(path: str, data: bytes) -> int:
    """Append all of it or nothing: a line cut by a full disk would spoil the next.

    Returns the file's size.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        written = os.write(descriptor, data)
        if written != len(data):
            os.ftruncate(descriptor, size)
            raise OSError("no room")
        return size + written
    finally:
        os.close(descriptor)


def _thin(path: str, now: float) -> int:
    """Thin a file of times; return how many lines are left."""
    with open(path, "rb") as file:
        lines = thin_times(file.read().splitlines(keepends=True), now)
    replace_file(path, b"".join(lines))
    return len(lines)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
