"""One log of a node, as far as it has been read, with its last lines and their times."""

from collections import deque
from collections.abc import Iterator

from clusterctl.logs.entry import Piece, Source
from clusterctl.logs.excerpt import is_frame
from clusterctl.logs.lines import Chunk, LineSplitter
from clusterctl.safe_text import strip_controls

KEPT_BYTES = 12 * 1024
"""Limit of the last lines together, for each rank: there may be thousands of ranks."""
LINE_BYTES = 2000
"""Limit of each of these lines, which may be a megabyte long."""


class LogFile:
    """One log of a node, as far as it has been read."""

    __slots__ = ("_kept", "_last", "_size", "_time", "begins_within", "source", "splitter")

    def __init__(self, source: Source, offset: int, kept: int) -> None:
        self.source = source
        self._kept = kept
        self.splitter = LineSplitter(offset)
        self._last: deque[tuple[bytes, float]] = deque()
        self._size = 0
        self._time = 0.0
        """When the last bytes that came were written."""
        self.begins_within = False
        """The first bytes belong to a line that began before, and are skipped."""

    def forget_lines(self) -> None:
        """Keep no line of an earlier attempt: these would tell nothing of this one's end."""
        self._last.clear()
        self._size = 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, without those of progress bars."""
        texts = (data.decode("utf-8", "backslashreplace") for data, _ in self._last)
        return tuple(map(strip_controls, texts))

    @property
    def last_times(self) -> tuple[float, ...]:
        """When these lines were written."""
        return tuple(time for _, time in self._last)

    @property
    def unfinished(self) -> int:
        """Bytes of a line without an end."""
        return self.splitter.received - self.splitter.offset

    def feed(self, data: bytes, time: float) -> Iterator[Piece]:
        """Take the next bytes, written at this time; yield the lines that are whole now."""
        self._time = time
        yield from self._pieces(self.splitter.feed(data))

    def finish(self) -> Iterator[Piece]:
        """Yield the line without an end."""
        yield from self._pieces(self.splitter.finish())

    def _pieces(self, chunks: list[Chunk]) -> Iterator[Piece]:
        """Yield these lines as pieces, and keep the last of them."""
        for chunk in chunks:
            whole = chunk
            if self.begins_within:
                whole, self.begins_within = chunk.without_first(), False
            if whole.data:
                if self._kept:
                    self._keep_last(whole)
                yield Piece(self.source, whole, self._time)

    def _keep_last(self, chunk: Chunk) -> None:
        last = self._last
        for line in chunk.last(2 * self._kept).lines():
            if line.ending == "\r" or not line.data.strip() or is_frame(line.data):
                continue
            data = line.data
            if len(data) > LINE_BYTES:
                data = data[:LINE_BYTES] + b" ..."
            self._size += len(data)
            last.append((data, self._time))
        while self._size > KEPT_BYTES or len(last) > self._kept:
            self._size -= len(last.popleft()[0])
