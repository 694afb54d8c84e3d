r"""Splits the bytes of a log file into lines by byte offset, for any chunks that arrive.

A line ends at `\n`, `\r\n` or a lone `\r` (progress bars). Data is first cut after its last whole
line. It is divided into lines, and decoded, only when lines are needed.
"""

from __future__ import annotations

import itertools
import re
from typing import Literal, NamedTuple

LINE_LIMIT = 1024 * 1024
"""Longer lines are returned in pieces."""

Ending = Literal["\n", "\r\n", "\r", ""]

_CONTINUATION = 0b10000000
_CONTINUATION_MASK = 0b11000000
_LINE = re.compile(rb"([^\r\n]*+)(\r\n|\n|\r|\Z)")
_ENDINGS: dict[bytes, Ending] = {b"\n": "\n", b"\r\n": "\r\n", b"\r": "\r", b"": ""}


class Line(NamedTuple):
    """One line of one file; a named tuple, since logs have millions."""

    begin: int
    """Byte offset of its first byte."""
    end: int
    """Byte offset after its line end, where reading continues."""
    data: bytes
    """Its bytes, without the line end."""
    ending: Ending
    r"""`\r`: the next line of the file overwrites it; empty: the file (or a huge line) ended."""

    @property
    def text(self) -> str:
        """The bytes as text; invalid UTF-8 becomes backslash escapes."""
        return self.data.decode("utf-8", "backslashreplace")


class Chunk(NamedTuple):
    """Whole lines of one file that arrived together, not yet split."""

    begin: int
    """Byte offset of its first byte."""
    data: bytes
    """The lines with their ends; only a file's last line or a piece of a huge one has none."""

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.begin + len(self.data)

    def lines(self) -> list[Line]:
        """Split it into lines."""
        if b"\r" in self.data:
            return [
                Line(self.begin + found.start(), self.begin + found.end(), found[1], ending)
                for found in _LINE.finditer(self.data)
                for ending in (_ENDINGS[found[2]],)
                if found[0]
            ]
        lines: list[Line] = []
        begin = self.begin
        *whole, rest = self.data.split(b"\n")
        for data in whole:
            end = begin + len(data) + 1
            lines.append(Line(begin, end, data, "\n"))
            begin = end
        if rest:
            lines.append(Line(begin, begin + len(rest), rest, ""))
        return lines

    def without_first(self) -> Chunk:
        """Return it without its first line."""
        first = _LINE.match(self.data)
        length = first.end() if first else 0
        return Chunk(self.begin + length, self.data[length:])

    def last(self, count: int) -> Chunk:
        """Return its last lines, at most `count`."""
        if b"\r" in self.data:
            lines = self.lines()[-count:]
            begin = lines[0].begin if lines else self.end
            return Chunk(begin, self.data[begin - self.begin :])
        cut = len(self.data) - self.data.endswith(b"\n")
        for _ in range(count):
            cut = self.data.rfind(b"\n", 0, cut)
            if cut < 0:
                return self
        return Chunk(self.begin + cut + 1, self.data[cut + 1 :])


class LineSplitter:
    """Splits the data of one file at line ends."""

    def __init__(self, offset: int = 0) -> None:
        """Start at a byte offset, which must be the start of a line."""
        self._begin = offset
        self._rest = bytearray()
        """What came of a line without an end: it grows in place, however small its pieces are."""

    @property
    def offset(self) -> int:
        """Where to resume after a break: the first byte that is not yet in a returned line."""
        return self._begin

    @property
    def received(self) -> int:
        """The offset after the last byte that was fed."""
        return self._begin + len(self._rest)

    def feed(self, data: bytes) -> list[Chunk]:
        """Add the next bytes of the file; return the lines that are now complete."""
        rest = self._rest
        # The kept bytes hold no line end, except perhaps a last `\r` that is no half of `\r\n`.
        searched = max(0, len(rest) - 1)
        rest += data
        whole = max(rest.rfind(b"\n", searched), rest.rfind(b"\r", searched, len(rest) - 1)) + 1
        cuts = [0, whole] if whole > 0 else [0]
        while len(rest) - cuts[-1] > LINE_LIMIT:
            cuts.append(_character_start(rest, cuts[-1] + LINE_LIMIT))
        chunks = [Chunk(self._begin + a, bytes(rest[a:b])) for a, b in itertools.pairwise(cuts)]
        self._begin += cuts[-1]
        del rest[: cuts[-1]]
        return chunks

    def finish(self) -> list[Chunk]:
        """Return the rest of the file, which has no line end."""
        left = Chunk(self._begin, bytes(self._rest))
        self._begin = left.end
        self._rest.clear()
        return [left] if left.data else []


def _character_start(data: bytearray, at: int) -> int:
    """Move a cut back to where a UTF-8 character begins, three bytes at most."""
    for cut in range(at, at - 4, -1):
        if data[cut] & _CONTINUATION_MASK != _CONTINUATION:
            return cut
    return at
