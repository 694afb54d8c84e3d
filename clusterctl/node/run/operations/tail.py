"""The operation `tail`: a run's logs and events by byte offset, what is there and what comes."""

from __future__ import annotations

import os
import time

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.file_io import read_end, read_json
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.files.run_paths import EVENTS, NodePaths, dropped_of, rank_of, times_of
from clusterctl.node.run.operations.status import find_run, is_alive, node_status, parse_times
from clusterctl.wire import Message, from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    WrittenRange = Tuple[float, str, int, int]
    """When the bytes of a log from one offset to another had been written."""

CHUNK = 256 * 1024
MIN_BYTES = 64 * 1024
"""Bytes at the end of a log that are sent at least."""
POLL_SECONDS = 0.03
MAX_OPEN = 100
"""Files that are kept open; opening one again for every piece of it takes longer than reading."""
READ_AHEAD = 16 * 1024 * 1024
"""Bytes of all logs that are read ahead of the pieces that history is sent in."""
NEW_TIMES_BYTES = 4096
"""Of a log's times, the last are read for what is new: a second's at least."""
MAX_PACKED = 1000
"""Pieces in one message."""
MAX_PIECES = 20000
"""Pieces that the history is cut into, for its order in time; more would cost too much."""


def tail(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Send a run's logs from the offsets given, and with `follow` until the run is over.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `from`: file → offset, where a negative
            one counts from the log's end; `lines`: at least so many of the last lines of each log
            that `from` does not name; `follow`; `files`: only these logs; `by_file`: one log after
            the other, in large pieces, whenever they were written; `nccl`: NCCL's own logs, too;
            `packed`: many pieces of what
            is there in one message.
        channel: gets `{"here": true}`, then the bytes with `{"data": file, "rank", "offset",
            "next", "time", "dropped"}` (the last: bytes before these that are lost), and
            `{"event": {…}, "file", "offset", "next"}`; `next` is for `from`. Packed pieces are
            `{"pieces": [[file, rank, offset, next, time, dropped], …]}` and their bytes.
    """
    del body
    paths = find_run(args)
    hand_over("tail", args, channel, paths)
    reader = LogTail(paths, channel, dict(args.get("from", {})), args.get("files"))
    reader.others = paths.nccl_logs() if args.get("nccl") else []
    reader.resolve_offsets(int(args.get("lines") or 0))
    channel.send(Message({"here": True}))  # a run may have nothing to say for hours
    reader.send_events()
    if args.get("by_file"):
        reader.send_new(by_time=False)
    else:
        reader.send_history(packed=bool(args.get("packed")))
    while args.get("follow") and not channel.disconnected:
        over = is_over(paths)  # before the last look: what is written until then is sent
        if not reader.send_new() and over:
            break
        time.sleep(POLL_SECONDS)
    return Message({"node": node_status(paths)})


def is_over(paths: NodePaths) -> bool:
    """Tell whether nothing more will be written: it ended, or no supervisor is left."""
    if os.path.exists(paths.end):
        return True
    return not is_alive(read_json(paths.supervisor))


class LogTail:
    """Sends each byte once, in order within its file."""

    def __init__(
        self,
        paths: NodePaths,
        channel: CallChannel,
        offsets: Dict[str, int],
        only: Optional[List[str]],
    ) -> None:
        self.paths, self.channel, self.offsets, self.only = paths, channel, offsets, only
        self.others: List[str] = []
        """Logs besides those of the launcher and the ranks."""
        self._open: Dict[str, int] = {}
        """Descriptors of logs and of their dropped offsets: neither file is ever replaced."""
        self._skipped: Dict[str, int] = {}
        """Bytes of a log that were dropped before they could be sent."""
        self._ahead_of: Dict[str, Tuple[int, bytes, int]] = {}
        """Of a log the bytes last read: their offset, they, and up to where it was dropped then."""
        self._ahead = 0
        """Bytes that are read at least."""
        self._pack: Optional[List[Tuple[List[Any], bytes]]] = None
        """Pieces that wait for others to be sent with; None: each is sent by itself."""
        self._packed = 0
        """Their bytes."""
        self._latest: Dict[str, float] = {}
        """The last time that was sent of each log."""

    def logs(self) -> List[str]:
        """Return the logs that are there and wanted."""
        there = [*self.paths.logs(), *self.others]
        return [log for log in there if self.only is None or log in self.only]

    def resolve_offsets(self, lines: int = 0) -> None:
        """Count negative offsets back from the logs' ends; other logs begin `lines` lines before.

        They begin `MIN_BYTES` bytes before if that is more: the controller folds and filters lines.
        """
        for log in self.logs() if lines else ():
            if log not in self.offsets:
                self.offsets[log] = self._line_from_end(log, lines)
        for log, offset in self.offsets.items():
            if offset < 0:
                self.offsets[log] = max(0, self._size(log) + offset)

    def send_events(self) -> bool:
        """Send the events that are new and whole; tell whether there were any."""
        start = first = self.offsets.get(EVENTS, 0)
        for line in self._read(EVENTS, start).splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            end = start + len(line)
            try:
                event = from_json(line.strip())
                head = {"event": event, "file": EVENTS, "offset": start, "next": end}
                self.channel.send(Message(head))
            except ValueError:
                pass  # cut by a full disk
            start = end
        self.offsets[EVENTS] = start
        return start > first

    def send_history(self, *, packed: bool = False) -> None:
        """Send what is there, in the order in which it was written as far as that is known."""
        pieces = sorted(self._pieces(), key=lambda piece: piece[0])
        self._ahead = min(CHUNK, READ_AHEAD // max(1, len({log for _, log, _, _ in pieces})))
        self._pack = [] if packed else None
        for written, log, start, end in pieces:
            self._send(log, start, end, written)
        self._send_pack()
        self._pack, self._ahead, self._ahead_of = None, 0, {}

    def send_new(self, *, by_time: bool = True) -> bool:
        """Send what has come since, cut where its times are known; tell whether anything had."""
        found = self.send_events()
        logs = self.logs()
        pieces: List[WrittenRange] = []
        for log in logs:
            size, modified = self._size_and_time(log)
            if size > self.offsets.get(log, 0):
                times = self._times(log, NEW_TIMES_BYTES) if by_time else []
                pieces += self._pieces_of(log, size, modified, times, len(logs))
        if by_time:
            pieces.sort(key=lambda piece: piece[0])
        for written, log, begin, end in pieces:
            if self.offsets.get(log, 0) < begin:
                continue  # what is before it cannot be read now
            self._send(log, begin, end, written)
            found = found or self.offsets[log] > begin  # it may not be readable
        return found

    def _pieces(self) -> Iterator[WrittenRange]:
        logs = self.logs()
        for log in logs:
            size, modified = self._size_and_time(log)
            yield from self._pieces_of(log, size, modified, self._times(log), len(logs))

    def _pieces_of(
        self, log: str, size: int, modified: float, times: List[Tuple[float, int]], logs: int
    ) -> Iterator[WrittenRange]:
        """Cut what is new in a log where its times are known."""
        start = self.offsets.get(log, 0)
        known = [entry for entry in times if start < entry[1] <= size]
        latest = self._latest.get(log, 0.0)
        for written, end in known[:: 1 + len(known) * logs // MAX_PIECES]:
            # Never back in time within a log: clocks are set, and a file's own is coarser.
            latest = self._latest[log] = max(latest, written)
            yield latest, log, start, end
            start = end
        if start < size:
            # Written since the last note; or there are none, and the file's own time must do.
            latest = self._latest[log] = max(latest, modified)
            yield latest, log, start, size

    def _send(self, log: str, start: int, end: int, written: float) -> None:
        while start < end:
            data, floor = self._bytes(log, start, min(CHUNK, end - start))
            if not data:
                break
            after = start + len(data)
            begin = max(start, min(end, floor))  # before it, the log was dropped to make room
            if begin > start:
                self._skipped[log] = self._skipped.get(log, 0) + begin - start
            if begin < after:
                self._emit(log, begin, written, data[begin - start :] if begin > start else data)
            start = max(begin, after)
        self.offsets[log] = start

    def _bytes(self, log: str, start: int, count: int) -> Tuple[bytes, int]:
        """Return at most so many bytes of a log, and up to where it was dropped when read."""
        begin, data, floor = self._ahead_of.get(log, (0, b"", 0))
        if not begin <= start < begin + len(data):
            begin, data = start, self._pread(log, start, max(count, self._ahead))
            # Only after the read: what was dropped meanwhile was read as zeros.
            floor = self._dropped(log)
            if self._ahead:
                self._ahead_of[log] = begin, data, floor
        return data[start - begin : start - begin + count], floor

    def _emit(self, log: str, begin: int, written: float, data: bytes) -> None:
        """Send a log's bytes, or keep them to be sent with others."""
        rank, after, written = rank_of(log), begin + len(data), round(written, 3)
        dropped = self._skipped.pop(log, 0)
        if self._pack is None:
            head = {"data": log, "rank": rank, "offset": begin, "next": after, "time": written}
            self.channel.send(Message({**head, "dropped": dropped} if dropped else head, data))
            return
        self._pack.append(([log, rank, begin, after, written, dropped], data))
        self._packed += len(data)
        if self._packed >= CHUNK or len(self._pack) == MAX_PACKED:
            self._send_pack()

    def _send_pack(self) -> None:
        if self._pack:
            heads, bodies = zip(*self._pack)
            self._pack, self._packed = [], 0
            self.channel.send(Message({"pieces": list(heads)}, b"".join(bodies)))

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
        while offset > floor and (lines >= 0 or size - offset < MIN_BYTES):
            # `lines + 1` line ends: the last line has one too, and the first may be cut.
            offset = max(0, offset - MIN_BYTES)
            lines -= self._pread(log, offset, min(MIN_BYTES, size - offset)).count(b"\n")
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
        """Return at most so many bytes of a log or its offset; none where it cannot be read."""
        try:
            if name not in self._open:
                if len(self._open) >= MAX_OPEN:
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
        return self._size_and_time(log)[0]

    def _size_and_time(self, log: str) -> Tuple[int, float]:
        """Return a log's size, and when it was last written."""
        try:
            found = os.stat(os.path.join(self.paths.folder, log))
        except OSError:
            return 0, time.time()
        return found.st_size, found.st_mtime

    def _times(self, log: str, last: int = 0) -> List[Tuple[float, int]]:
        """Return when a log had which size; of the last bytes of its times only, if given."""
        if last:
            data = read_end(os.path.join(self.paths.folder, times_of(log)), last)
        else:
            data = self._read(times_of(log), 0)
        return parse_times(data, cut=len(data) == last)
