"""The lines of a data set's files, whatever their format: all of them, or those of a part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from train.data.files import csv_rows, json_values, parquet, paths, streams, tar_members
from train.data.files.bad_line import BadLine, Swallowed
from train.data.files.streams import Stream
from train.errors import ConfigError
from train.files import measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the data; of a table a row, of a JSON array an item."""

    number: int
    """Counted over all files, from 0."""
    where: str
    """`file:line`, counted from 1."""
    content: bytes | BadLine
    """A JSON object, or why there is none."""
    offset: int = 0
    """Where it begins in its file, as in a mark."""
    within: int = 0
    """Lines before it in its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The beginning of a line."""

    file: int
    """Which of the files."""
    offset: int
    """How far into it, as its format counts: bytes when decompressed, or rows of Parquet."""
    line: int
    """Lines before it, over all files."""
    within: int
    """Lines before it in its file."""


BLOCK = 1 << 22
BEGIN = Mark(file=0, offset=0, line=0, within=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """What one pass over a file finds."""

    digest: bytes
    """SHA-256 of its content."""
    lines: int
    begins: tuple[tuple[int, int], ...]
    """For each target the offset of the next line that a reader can begin at, and the lines
    before it; fewer if the file ends first."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the lines of a file are stored."""

    noun: str
    """What stands before the number of a line in `file:line`."""
    rows: Callable[[Path, Stream, int], Iterator[tuple[int, bytes | BadLine]]]
    """Yields each line from an offset on, with its own: a JSON object, nothing, or a fault."""


def _json_lines(_path: Path, stream: Stream, begin: int) -> Iterator[tuple[int, bytes]]:
    for line in stream.bytes:
        yield begin, line
        begin += len(line)


JSON_LINES = Format("", _json_lines)
JSON_VALUES = Format("item ", json_values.rows)
CSV = Format("row ", csv_rows.rows)
TAR = Format("member ", tar_members.rows)


def format_of(path: Path) -> Format | None:
    """Return the format of a file, None for Parquet: the content decides the layout of JSON."""
    with streams.opened(path) as stream:
        start = stream.bytes.read(512)
    if start.startswith(b"PAR1") or paths.ending(path) == paths.PARQUET:
        return None
    if tar_members.is_archive(start):
        return TAR
    layout = json_values.layout(path)
    if layout is None and paths.ending(path) in csv_rows.SUFFIXES:
        return CSV
    return JSON_VALUES if layout == "values" else JSON_LINES


def scan(path: Path, targets: Sequence[int]) -> FileScan:
    """Read a file once; the targets are bytes into it, rising."""
    kind = format_of(path)
    if kind is None:
        lines, begins = parquet.scan(path, targets)
        return FileScan(digest=_digest(path, "parquet"), lines=lines, begins=begins)
    places = streams.Places()
    lines = offset = 0
    content: object = b""
    # To make records of a table's cells takes long.
    rows: Callable[[Path, Stream, int], Iterator[tuple[int, object]]]
    rows = csv_rows.cells if kind is CSV else kind.rows
    with streams.opened(path) as stream:
        if kind is JSON_LINES and not stream.compressed:
            return _scan_text(stream.bytes, targets)
        for offset, content in rows(path, stream, 0):
            if isinstance(content, Swallowed):
                raise ConfigError(f"{path}:{kind.noun}{lines + 1}: {content}")
            places.add(offset, lines)
            lines += 1
    if kind is JSON_LINES and isinstance(content, bytes):
        offset += len(content)
    return FileScan(
        digest=_digest(path, csv_rows.kind(path) if kind is CSV else ""),
        lines=lines,
        begins=places.begins(targets, stream, offset),
    )


def _scan_text(file: BinaryIO, targets: Sequence[int]) -> FileScan:
    """Scan JSON lines by blocks, with their digest: a file may have 100 GB."""
    digest = hashlib.sha256()
    begins: list[tuple[int, int]] = []
    lines = offset = 0
    last = b"\n"
    while block := file.read(BLOCK):
        digest.update(block)
        for target in targets[len(begins) :]:
            at = block.find(b"\n", max(0, target - 1 - offset)) + 1
            if not at:
                break
            begins.append((offset + at, lines + block.count(b"\n", 0, at)))
        lines += block.count(b"\n")
        offset += len(block)
        last = block[-1:]
    return FileScan(
        digest=digest.digest(),
        lines=lines + (last != b"\n"),
        begins=tuple(place for place in begins if place[0] < offset),
    )


def _digest(path: Path, kind: str) -> bytes:
    """Hash a file as it is on disk: in another compression, marks belong to other lines.

    The bytes of a table would be other lines if they were read as JSON, so its kind counts too.
    """
    found = measure(path).sha256
    return hashlib.sha256(f"{kind} {found}".encode()).digest() if kind else bytes.fromhex(found)


def read(
    files: tuple[Path, ...],
    begin: Mark = BEGIN,
    end: Mark | None = None,
    *,
    start: int = 0,
    stride: int = 1,
    columns: frozenset[str] = frozenset(),
) -> Iterator[Line]:
    """Yield the lines start, start + stride, ... of all; empty ones count and are left out.

    Of tables, `columns` are read besides those of the known forms.
    """
    number, within, offset = begin.line, begin.within, begin.offset
    last = len(files) if end is None else end.file
    for at, path in enumerate(files[begin.file : last + 1], begin.file):
        kind = format_of(path)
        stop = end.offset if end is not None and at == end.file else None
        contents = (
            _between(kind, path, offset, stop)
            if kind
            else enumerate(parquet.read(path, offset, stop, columns), offset)
        )
        for begins, content in contents:
            if number % stride == start and (isinstance(content, BadLine) or content.strip()):
                where = f"{path}:{kind.noun if kind else parquet.NOUN}{within + 1}"
                yield Line(
                    number=number, where=where, content=content, offset=begins, within=within
                )
            number += 1
            within += 1
        within = offset = 0


def _between(
    kind: Format, path: Path, begin: int, end: int | None
) -> Iterator[tuple[int, bytes | BadLine]]:
    with streams.opened(path, begin) as stream:
        for offset, content in kind.rows(path, stream, begin):
            if end is not None and offset >= end:
                break
            yield offset, content


def count(files: tuple[Path, ...], line_bytes: float) -> int:
    """Return about how many lines there are, if one takes so many bytes as JSON."""
    return sum(
        max(1, round(streams.size(path) / line_bytes)) if format_of(path) else parquet.count(path)
        for path in files
    )
