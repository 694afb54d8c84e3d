"""The lines of a data set's files, whatever their format: all of them, or those of a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train.data import csv_rows, json_values, jsonl, parquet, paths, streams
from train.data.bad_line import BadLine
from train.data.marks import BEGIN, Format, Line, Mark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def format_of(path: Path) -> Format:
    """Return the format of a file: its content decides which layout of JSON it is."""
    with streams.opened(path) as stream:
        is_parquet = stream.bytes.read(4) == b"PAR1"
    if is_parquet or paths.ending(path) == paths.PARQUET:
        return parquet
    layout = json_values.layout(path)
    if layout is None and paths.ending(path) in csv_rows.SUFFIXES:
        return csv_rows
    return json_values if layout == "values" else jsonl


def read(
    files: tuple[Path, ...],
    begin: Mark = BEGIN,
    end: Mark | None = None,
    *,
    start: int = 0,
    stride: int = 1,
    columns: frozenset[str] = frozenset(),
) -> Iterator[Line]:
    """Yield the lines start, start + stride, ...; empty ones count and are left out.

    Args:
        files: The data.
        begin: Where to begin reading.
        end: Where to leave off; without it at the end of the last file.
        start: Which lines, counted from the first of all whatever `begin` is.
        stride: The same.
        columns: Of tables, what is read besides the columns of the known forms.
    """
    number, within, offset = begin.line, begin.within, begin.offset
    last = len(files) if end is None else end.file
    for at, path in enumerate(files[begin.file : last + 1], begin.file):
        kind = format_of(path)
        stop = end.offset if end is not None and at == end.file else None
        contents = (
            parquet.read(path, offset, stop, columns)
            if kind is parquet
            else kind.read(path, offset, stop)
        )
        for content in contents:
            within += 1
            if number % stride == start and (isinstance(content, BadLine) or content.strip()):
                where = f"{path}:{kind.LINE}{within}"
                yield Line(number=number, where=where, content=content)
            number += 1
        within = offset = 0


def count(files: tuple[Path, ...], line_bytes: float) -> int:
    """Return about how many lines there are, if one takes so many bytes as JSON."""
    return sum(format_of(path).count(path, line_bytes) for path in files)
