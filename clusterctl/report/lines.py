"""Prints log lines: `[host:rank] line`, raw bytes, or one JSON object per line."""

import datetime as dt
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TextIO

from clusterctl.logs.entry import Folded, Source
from clusterctl.safe_text import keep_colors, strip_controls
from clusterctl.wire import SCHEMA

_HOST_COLORS = (36, 32, 35, 34, 33, 96, 92, 95, 94, 93)
_MANY = len(_HOST_COLORS)

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class LinePrinter(ABC):
    """Writes lines to one stream and flushes it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._plain = "NO_COLOR" in os.environ
        self._colored = stream.isatty() and not self._plain
        self._colors: dict[str, int] = {}
        self._prefixes: dict[Source, str] = {}
        """Only of single sources: folded lines have too many combinations to keep."""

    def show(self, lines: Iterable[Folded]) -> None:
        """Print lines, all at once."""
        self.stream.write("".join(self.shape(line) for line in lines))
        self.stream.flush()

    @abstractmethod
    def shape(self, line: Folded) -> str:
        """Return the text to print for a line."""


class Prefixed(LinePrinter):
    """`[host:rank] line`; on a terminal each host has its own color."""

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
        if not self._colored:
            return label
        host = name.partition(":")[0]
        color = self._colors.setdefault(host, _HOST_COLORS[len(self._colors) % _MANY])
        return f"\x1b[{color}m{label}\x1b[0m"


class Timestamped(Prefixed):
    """`2026-11-20T19:04:05.123Z [host:rank] line`."""

    def prefix(self, line: Folded) -> str:
        """Return the time and `[host:rank]`."""
        return f"{utc(line.time)} {super().prefix(line)}"


class Raw(LinePrinter):
    """Each line byte for byte, without a prefix; one without an end only ends before another's."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._unfinished: tuple[Source, ...] = ()
        """Whose last line has no end."""

    def show(self, lines: Iterable[Folded]) -> None:
        """Print lines, all at once."""
        self.stream.flush()
        parts = []
        for line in lines:
            data = line.line.data + line.line.ending.encode()
            if self._unfinished and self._unfinished != line.sources:
                parts.append(b"\n")
            self._unfinished = () if data.endswith((b"\n", b"\r")) else line.sources
            parts.append(data)
        self.stream.buffer.write(b"".join(parts))
        self.stream.buffer.flush()

    def shape(self, line: Folded) -> str:
        """Return the line's text; `show` writes bytes."""
        return line.line.text


class JsonLines(LinePrinter):
    """One JSON object per line."""

    def __init__(self, stream: TextIO, *, run: str = "") -> None:
        """Print to this stream; of several runs, each line says its own."""
        super().__init__(stream)
        self._run = {"run": run} if run else {}

    def shape(self, line: Folded) -> str:
        """Return the line's object."""
        document = {
            "schema": SCHEMA,
            "kind": "line",
            **self._run,
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


def day_and_time(seconds: float | None) -> str:
    """Return a time by this machine's clock, `Nov 28 14:05`; of another year, with the year."""
    if not seconds:
        return ""
    then, now = dt.datetime.fromtimestamp(seconds), dt.datetime.now()  # noqa: DTZ005, DTZ006
    return f"{then:%b %d %H:%M}" if then.year == now.year else f"{then:%Y-%m-%d %H:%M}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: `1 h 55 min`, `40 s`."""
    left = round(max(seconds, 0))
    parts = []
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def age(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
