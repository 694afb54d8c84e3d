"""The operation `tail`: a run's logs and events by byte offset, what is there and what comes."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from clusterctl.node.handover import to_runs_own
from clusterctl.node.link import Link
from clusterctl.node.paths import EVENTS, NodePaths, dropped_of, rank_of, times_of
from clusterctl.node.record import read_json
from clusterctl.node.status import find, is_alive, node_run
from clusterctl.wire import Message

CHUNK = 256 * 1024
LEAST = 64 * 1024
"""Bytes at the end of a log that are sent at least."""
POLL_SECONDS = 0.03
MOST_OPEN = 100
"""Files that are kept open; opening one again for every piece of it takes longer than reading."""
MOST_PIECES = 20000
"""Pieces that the history is cut into, for its order in time; more would cost too much."""

Piece = Tuple[float, str, int, int]
"""When the bytes of a log from one offset to another had been written."""


def tail(args: Dict[str, Any], body: bytes, link: Link) -> Message:
    """Send a run's logs from the offsets given, and with `follow` until the run is over.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `from`: file → offset, where a negative
            one counts from the log's end; `lines`: at least so many of the last lines of each log
            that `from` does not name; `follow`; `files`: only these logs; `by_file`: one log after
            the other, in large pieces, whenever they were written.
        body: unused.
        link: gets `{"here": true}`, then the bytes with `{"data": file, "rank", "offset", "next",
            "time", "dropped"}` (the last: bytes before these that are lost), and
            `{"event": {…}, "file", "offset", "next"}`; `next` is for `from`.
    """
    del body
    paths = find(args)
    to_runs_own("tail", args, link, paths)
    reader = Reader(paths, link, dict(args.get("from", {})), args.get("files"))
    reader.resolve_offsets(int(args.get("lines") or 0))
    link.send(Message({"here": True}))  # a run may have nothing to say for hours
    reader.events()
    if args.get("by_file"):
        reader.news()
    else:
        reader.history()
    while args.get("follow") and not link.gone:
        over = is_over(paths)  # before the last look: what is written until then is sent
        if not reader.news() and over:
            break
        time.sleep(POLL_SECONDS)
    return Message({"node": node_run(paths)})


def is_over(paths: NodePaths) -> bool:
    """Tell whether nothing more will be written: it ended, or nobody looks after it."""
    if os.path.exists(paths.end):
        return True
    return not is_alive(read_json(paths.supervisor) or {})


class Reader:
    """Sends each byte once, in order within its file."""

    def __init__(
        self, paths: NodePaths, link: Link, offsets: Dict[str, int], only: Optional[List[str]]
    ) -> None:
        self.paths, self.link, self.offsets, self.only = paths, link, offsets, only
        self._open: Dict[str, int] = {}
        """Descriptors of logs and of their marks: neither is ever replaced by another file."""
        self._skipped: Dict[str, int] = {}
        """Bytes of a log that were dropped before they could be sent."""

    def logs(self) -> List[str]:
        """Return the logs that are there and wanted."""
        return [log for log in self.paths.logs() if self.only is None or log in self.only]

    def resolve_offsets(self, lines: int = 0) -> None:
        """Count negative offsets back from the logs' ends; other logs begin `lines` lines before.

        They begin `LEAST` bytes before if that is more: the controller folds and filters lines.
        """
        for log in self.logs() if lines else ():
            if log not in self.offsets:
                self.offsets[log] = self._line_from_end(log, lines)
        for log, offset in self.offsets.items():
            if offset < 0:
                self.offsets[log] = max(0, self._size(log) + offset)

    def events(self) -> bool:
        """Send the events that are new and whole; tell whether there were any."""
        any_new = False
        start = self.offsets.get(EVENTS, 0)
        data = self._read(EVENTS, start)
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            end = start + len(line)
            try:
                head = {"event": json.loads(line), "file": EVENTS, "offset": start, "next": end}
                self.link.send(Message(head))
            except ValueError:
                pass  # cut by a full disk
            start = end
            any_new = True
        self.offsets[EVENTS] = start
        return any_new

    def history(self) -> None:
        """Send what is there, in the order in which it was written as far as that is known."""
        for written, log, start, end in sorted(self._pieces(), key=lambda piece: piece[0]):
            self._send(log, start, end, written)

    def news(self) -> bool:
        """Send what has come since; tell whether anything had."""
        found = self.events()
        for log in self.logs():
            size = self._size(log)
            start = self.offsets.get(log, 0)
            if size > start:
                self._send(log, start, size, time.time())
                found = True
        return found

    def _pieces(self) -> Iterator[Piece]:
        logs = self.logs()
        for log in logs:
            size, start = self._size(log), self.offsets.get(log, 0)
            known = [entry for entry in self._times(log) if start < entry[1] <= size]
            latest = 0.0
            for written, end in known[:: 1 + len(known) * len(logs) // MOST_PIECES]:
                # Never back in time within a log: clocks are set, and a file's own is coarser.
                latest = max(latest, written)
                yield latest, log, start, end
                start = end
            if start < size:
                # Written since the last note; or there are none, and the file's own time must do.
                yield max(latest, self._modified(log)), log, start, size

    def _send(self, log: str, start: int, end: int, written: float) -> None:
        while start < end:
            data = self._pread(log, start, min(CHUNK, end - start))
            if not data:
                break
            after = start + len(data)
            # Only after the read: what was dropped meanwhile was read as zeros.
            begin = self._skip(log, start, end)
            if begin < after:
                head = {"data": log, "rank": rank_of(log), "offset": begin, "next": after}
                if log in self._skipped:
                    head["dropped"] = self._skipped.pop(log)
                self.link.send(Message({**head, "time": round(written, 3)}, data[begin - start :]))
            start = max(begin, after)
        self.offsets[log] = start

    def _skip(self, log: str, start: int, end: int) -> int:
        """Return where the first byte from here on is that was not dropped to make room."""
        begin = max(start, min(end, self._dropped(log)))
        if begin > start:
            self._skipped[log] = self._skipped.get(log, 0) + begin - start
        return begin

    def _dropped(self, log: str) -> int:
        """Return the offset up to which a log was dropped to make room."""
        try:
            return int(self._pread(dropped_of(log), 0, 32) or 0)
        except ValueError:
            return 0  # a power failure leaves zeros

    def _line_from_end(self, log: str, lines: int) -> int:
        """Return an offset within the line before the last `lines` lines, or before that."""
        size, floor = self._size(log), self._dropped(log)
        offset = size
        while offset > floor and (lines >= 0 or size - offset < LEAST):
            # `lines + 1` line ends: the last line has one too, and the first may be cut.
            offset = max(0, offset - LEAST)
            lines -= self._pread(log, offset, min(LEAST, size - offset)).count(b"\n")
        return offset

    def _read(self, name: str, offset: int) -> bytes:
        """Return a file from an offset to its end; nothing of one that cannot be read."""
        try:
            with open(os.path.join(self.paths.folder, name), "rb") as file:
                file.seek(offset)
                return file.read()
        except OSError:
            return b""

    def _pread(self, name: str, offset: int, count: int) -> bytes:
        """Return at most so many bytes of a log or its mark; none where it cannot be read."""
        try:
            if name not in self._open:
                if len(self._open) >= MOST_OPEN:
                    self.close()
                self._open[name] = os.open(os.path.join(self.paths.folder, name), os.O_RDONLY)
            return os.pread(self._open[name], count, offset)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the files that are open; they are opened again when they are read."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def _size(self, log: str) -> int:
        try:
            return os.stat(os.path.join(self.paths.folder, log)).st_size
        except OSError:
            return 0

    def _modified(self, log: str) -> float:
        try:
            return os.stat(os.path.join(self.paths.folder, log)).st_mtime
        except OSError:
            return time.time()

    def _times(self, log: str) -> List[Tuple[float, int]]:
        found = []
        for line in self._read(times_of(log), 0).splitlines():
            try:
                written, size = line.split()
                found.append((float(written), int(size)))
            except ValueError:
                continue  # a power failure leaves zeros at the end of a file
        return found
