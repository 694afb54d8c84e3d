"""A run's lines as they are printed: `[host:rank] line`, or raw, or one JSON object each."""

from __future__ import annotations

import datetime as dt
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TextIO

from clusterctl.logs.entry import Folded, Source
from clusterctl.safe_text import keep_colors, strip_controls
from clusterctl.wire import SCHEMA

_HOST_COLOURS = (36, 32, 35, 34, 33, 96, 92, 95, 94, 93)
_MANY = len(_HOST_COLOURS)


class LinePrinter(ABC):
    """Writes lines to one stream; what was written is on its way when a call returns."""

    def __init__(self, stream: TextIO) -> None:
        """Print to this stream."""
        self.stream = stream
        self._plain = "NO_COLOR" in os.environ
        self._coloured = stream.isatty() and not self._plain
        self._colours: dict[str, int] = {}
        self._prefixes: dict[Source, str] = {}
        """Of single sources: the sets that lines are folded to have no bound."""

    def show(self, lines: Iterable[Folded]) -> None:
        """Print lines, all at once."""
        self.stream.write("".join(self.shape(line) for line in lines))
        self.stream.flush()

    @abstractmethod
    def shape(self, line: Folded) -> str:
        """Return what is printed of a line."""


class Prefixed(LinePrinter):
    """`[host:rank] line`, the prefix in the host's colour where the stream is a terminal."""

    def shape(self, line: Folded) -> str:
        """Return the line with its prefix, safe to print."""
        text = line.line.text
        clean = strip_controls(text) if self._plain else keep_colors(text)
        return f"{self.prefix(line)} {clean}\n"

    def prefix(self, line: Folded) -> str:
        """Return `[host:rank]`."""
        if len(line.sources) > 1:
            return self._make_prefix(line.label)
        (source,) = line.sources
        known = self._prefixes.get(source)
        if known is None:
            known = self._prefixes[source] = self._make_prefix(line.label)
        return known

    def _make_prefix(self, name: str) -> str:
        label = f"[{strip_controls(name)}]"
        if not self._coloured:
            return label
        host = name.partition(":")[0]
        colour = self._colours.setdefault(host, _HOST_COLOURS[len(self._colours) % _MANY])
        return f"\x1b[{colour}m{label}\x1b[0m"


class Timestamped(Prefixed):
    """`2026-11-20T19:04:05.123Z [host:rank] line`."""

    def prefix(self, line: Folded) -> str:
        """Return the time and `[host:rank]`."""
        return f"{utc(line.time)} {super().prefix(line)}"


class Raw(LinePrinter):
    """Each line as it was, byte for byte, without a prefix."""

    def show(self, lines: Iterable[Folded]) -> None:
        """Print lines, all at once."""
        self.stream.flush()
        data = b"".join(line.line.data + line.line.ending.encode() for line in lines)
        self.stream.buffer.write(data)
        self.stream.buffer.flush()

    def shape(self, line: Folded) -> str:
        """Return the line's text; `show` writes bytes."""
        return line.line.text


class JsonLines(LinePrinter):
    """One JSON object a line."""

    def shape(self, line: Folded) -> str:
        """Return the line's object."""
        document = {
            "schema": SCHEMA,
            "kind": "line",
            "time": line.time,
            "node": line.sources[0].node,
            "rank": line.sources[0].rank,
            "offset": line.line.begin,
            "line": line.line.text,
        }
        return json.dumps(document) + "\n"


def utc(seconds: float) -> str:
    """Return a time as `2026-11-20T19:04:05.123Z`."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
