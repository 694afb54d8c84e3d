"""A JSON array of objects, or objects one after the other, each over several lines.

An item is found by a parser over a buffer and given on as its own bytes. So memory does not grow
with the file, and a reader can begin at any item.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from train.data.files import streams
from train.data.files.streams import Stream
from train.errors import ConfigError

BLOCK = 1 << 20
SPACE = re.compile(r"[ \t\r\n]*")
NEAR = 16
"""Characters before the end of a buffer in which a fault may only be that more is to come."""
NUMBER_ENDS = 2
"""Characters after a number that may still be of it: `1.5e+` is 1.5 until a digit comes."""


def layout(path: Path) -> Literal["lines", "values"] | None:
    """Return whether a file holds JSON lines or such values; None: it does not begin as JSON."""
    with streams.opened(path) as stream:
        text = _Text(stream)
        if (first := text.next()) != "{":
            return "values" if first == "[" else None
        try:
            return "values" if "\n" in text.value() else "lines"
        except (ValueError, RecursionError):
            return "lines"


class _Text:
    """What of a stream is in memory, as one character a byte: so offsets are those of bytes."""

    def __init__(self, stream: Stream, begin: int = 0) -> None:
        self._stream = stream
        self._text = ""
        self._at = 0
        self._begin = begin
        # The reader of an item reads its numbers: here only their ends count.
        self._decoder = json.JSONDecoder(strict=False, parse_int=len, parse_float=len)

    @property
    def offset(self) -> int:
        """Where the next character is in the stream."""
        return self._begin + self._at

    def next(self) -> str:
        """Return the next character that is no space, without taking it; "" at the end."""
        while True:
            found = SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def expect(self, wanted: str) -> None:
        """Take a character that must be the next; "" is the end."""
        if (found := self.next()) != wanted:
            said = f"{found or 'the end'}, where {wanted or 'the end'} should be"
            raise json.JSONDecodeError(said, "", self.offset)
        self._at += len(wanted)

    def value(self) -> str:
        """Take a JSON value."""
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                may_go_on = "Unterminated" in error.msg or error.pos >= len(self._text) - NEAR
                offset = self._begin + error.pos
                if may_go_on and self._more():
                    continue
                raise json.JSONDecodeError(error.msg, "", offset) from None
            value, left = self._text[self._at : end], len(self._text) - end
            if left <= NUMBER_ENDS and self._more():
                continue
            self._at = len(self._text) - left
            return value

    def _more(self) -> bool:
        """Read on: twice as much, so that a long item is not parsed too often."""
        block = self._stream.bytes.read(max(BLOCK, len(self._text)))
        if not self.offset and not self._text and block.startswith(streams.BOM):
            block, self._begin = block[len(streams.BOM) :], len(streams.BOM)
        self._begin += self._at
        self._text = self._text[self._at :] + block.decode("latin-1")
        self._at = 0
        return bool(block)


def rows(path: Path, stream: Stream, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the items from an offset on, each with its own."""
    with streams.opened(path) as start:
        is_array = _Text(start).next() == "["
    text = _Text(stream, begin)
    end = "]" if is_array else ""
    try:
        if is_array and not begin:
            text.expect("[")
        while text.next() != end:
            offset = text.offset
            yield offset, text.value().encode("latin-1")
            if is_array and text.next() != end:
                text.expect(",")
        if is_array:
            text.expect(end)
            text.expect("")
    except (json.JSONDecodeError, RecursionError) as error:
        at, found = text.offset, " too many brackets"
        if isinstance(error, json.JSONDecodeError):
            at, found = error.pos, f": {error.msg}"
        problem = f"{path}:{_line(path, at)}: expected JSON, found{found}"
        raise ConfigError(problem) from None


def _line(path: Path, offset: int) -> int:
    line = 1
    with streams.opened(path) as stream:
        while offset > 0 and (block := stream.bytes.read(min(BLOCK, offset))):
            line += block.count(b"\n")
            offset -= len(block)
    return line
