"""CSV and TSV: a row is an object whose keys are in the first row, and whose values are text.

A reader can begin at any row. Rows are counted as a spreadsheet does: the keys are in row 1.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from train.data.files import streams
from train.data.files.bad_line import BadLine, Swallowed
from train.data.files.streams import Stream
from train.errors import ConfigError

SUFFIXES = (".csv", ".tsv")
DELIMITERS = ",;\t"
LONGEST = 1 << 27
"""Characters of a cell: in a longer one a quote is missing."""


def rows(path: Path, stream: Stream, begin: int) -> Iterator[tuple[int, bytes | BadLine]]:
    """Yield the rows as JSON objects, each with its offset; the first one of all is empty."""
    with streams.opened(path) as start:
        _, keys = next(cells(path, start, 0), (0, []))
    if isinstance(keys, BadLine):
        raise ConfigError(f"{path}:row 1: {keys}")
    if twice := [key for key, times in Counter(keys).items() if key and times > 1]:
        found = f"found {', '.join(twice)} twice"
        raise ConfigError(f"{path}:row 1: expected a name for each column, {found}")
    for offset, row in cells(path, stream, begin):
        if isinstance(row, BadLine):
            yield offset, row
        else:
            yield offset, _record(keys, row) if row and offset else b""


def kind(path: Path) -> str:
    """Return `.csv` or `.tsv`."""
    return next(suffix for suffix in reversed(path.suffixes) if suffix.lower() in SUFFIXES).lower()


def _delimiter(path: Path) -> str:
    """Return what stands between cells; spreadsheets of some languages write semicolons."""
    if kind(path) == ".tsv":
        return "\t"
    with streams.opened(path) as stream:
        header = stream.bytes.readline().decode("latin-1")
    return max(DELIMITERS, key=header.count)


def cells(path: Path, stream: Stream, begin: int) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield the cells of each row from an offset on, with its own."""
    delimiter = _delimiter(path)
    csv.field_size_limit(LONGEST)
    offset = begin

    def lines() -> Iterator[str]:
        nonlocal offset
        for line in stream.bytes:
            text = line.removeprefix(b"" if offset else streams.BOM)
            offset += len(line)
            yield text.decode(errors="surrogateescape")

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        start, before = offset, rows.line_num
        try:
            yield start, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if (taken := rows.line_num - before) > 1:
                said = f"found a quote that opens and is not closed: {taken} lines are in one cell"
                yield start, Swallowed(f"expected a row of cells, {said}")
            else:
                yield start, BadLine(f"expected a row of cells, found: {error}")


def _record(keys: list[str], row: list[str]) -> bytes | BadLine:
    """Return a row as JSON; a byte that is no UTF-8 stays, for the reader of the line to name."""
    if len(row) != len(keys):
        return BadLine(f"expected {len(keys)} cells as in row 1, found {len(row)}")
    record = {key: cell for key, cell in zip(keys, row, strict=True) if key}
    return json.dumps(record, ensure_ascii=False).encode(errors="surrogateescape")
