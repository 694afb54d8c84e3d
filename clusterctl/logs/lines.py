r"""Bytes of a log file to lines, by byte offset: whatever the chunks, no line lost, cut or doubled.

A line ends at `\n`, `\r\n` or a lone `\r` (progress bars). Bytes are only decoded once a line is
whole, so a chunk that ends within a character does no harm.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

LINE_LIMIT = 1024 * 1024
"""A longer run of bytes without a line end is passed on in pieces."""

_CONTINUATION = 0b10000000
_CONTINUATION_MASK = 0b11000000


class Line(NamedTuple):
    """One line of one file; a named tuple, since logs have millions."""

    begin: int
    """Byte offset of its first byte."""
    end: int
    """Byte offset behind its line end: where reading goes on."""
    data: bytes
    """Its bytes, without the line end."""
    ending: Literal["\n", "\r\n", "\r", ""]
    r"""`\r`: the next line of the file overwrites it; empty: the file (or a huge line) ended."""

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 shows as backslash escapes."""
        return self.data.decode("utf-8", "backslashreplace")


class LineSplitter:
    """Turns the chunks of one file into lines."""

    def __init__(self, offset: int = 0) -> None:
        """Start at a byte offset, which must be where a line begins."""
        self._begin = offset
        self._rest = bytearray()
        self._searched = 0

    @property
    def offset(self) -> int:
        """Where to go on reading after a break: the first byte not yet passed on in a line."""
        return self._begin

    @property
    def received(self) -> int:
        """The offset behind the last byte that was fed."""
        return self._begin + len(self._rest)

    def feed(self, data: bytes) -> list[Line]:
        """Take the next bytes of the file; return the lines that are whole now."""
        self._rest += data
        lines: list[Line] = []
        if b"\r" not in self._rest:
            self._take_plain(lines)
        while (found := self._next_end()) is not None:
            lines.append(self._take(*found))
        while len(self._rest) > LINE_LIMIT:
            lines.append(self._take(_character_start(self._rest, LINE_LIMIT), ""))
        return lines

    def finish(self) -> list[Line]:
        """The file is over: return what is left without a line end, if anything."""
        if self._rest.endswith(b"\r"):
            return [self._take(len(self._rest) - 1, "\r")]
        return [self._take(len(self._rest), "")] if self._rest else []

    def _take_plain(self, lines: list[Line]) -> None:
        r"""Take all that ends in `\n`, quickly: there is no `\r` in it."""
        whole = self._rest.rfind(b"\n")
        if whole < 0:
            return
        begin = self._begin
        for data in bytes(self._rest[:whole]).split(b"\n"):
            end = begin + len(data) + 1
            lines.append(Line(begin, end, data, "\n"))
            begin = end
        del self._rest[: whole + 1]
        self._begin = begin
        self._searched = 0

    def _next_end(self) -> tuple[int, Literal["\n", "\r\n", "\r"]] | None:
        r"""Find the first line end; a `\r` that is the last byte may be half of `\r\n`."""
        newline = self._rest.find(b"\n", self._searched)
        limit = newline if newline >= 0 else len(self._rest)
        carriage = self._rest.find(b"\r", self._searched, limit)
        if carriage >= 0 and carriage + 1 < len(self._rest):
            if carriage + 1 == newline:
                return carriage, "\r\n"
            return carriage, "\r"
        if newline >= 0:
            return newline, "\n"
        self._searched = carriage if carriage >= 0 else len(self._rest)
        return None

    def _take(self, length: int, ending: Literal["\n", "\r\n", "\r", ""]) -> Line:
        end = self._begin + length + len(ending)
        line = Line(begin=self._begin, end=end, data=bytes(self._rest[:length]), ending=ending)
        del self._rest[: length + len(ending)]
        self._begin = end
        self._searched = 0
        return line


def _character_start(data: bytearray, at: int) -> int:
    """Move a cut back to where a UTF-8 character begins, three bytes at most."""
    for cut in range(at, at - 4, -1):
        if data[cut] & _CONTINUATION_MASK != _CONTINUATION:
            return cut
    return at
