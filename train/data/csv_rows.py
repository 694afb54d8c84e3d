"""CSV and TSV: a row is an object whose keys are in the first row, and whose values are text.

A reader can begin at any row.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING

from train.data import streams
from train.data.bad_line import BadLine
from train.data.marks import FileScan
from train.errors import ConfigError
from train.files import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from train.data.streams import Stream

LINE = "row "
"""Counted as a spreadsheet does: the keys are in row 1."""
SUFFIXES = (".csv", ".tsv")
DELIMITERS = ",;\t"
LONGEST = 1 << 27
"""Characters of a cell: in a longer one a quote is missing."""
BOM = b"\xef\xbb\xbf"


class Swallowed(BadLine):
    """A row that has other rows in it: to leave it out would lose them."""


def scan(path: Path, targets: Sequence[int]) -> FileScan:
    """Return the digest, the number of rows, and the first row at each target or after it."""
    places = streams.Places()
    rows = offset = 0
    with streams.opened(path) as stream:
        for offset, cells in _rows(stream, 0, _delimiter(path)):
            if isinstance(cells, Swallowed):
                raise ConfigError((f"{path}:row {rows + 1}: {cells}",))
            places.add(offset, rows)
            rows += 1
    # The same bytes as JSON lines would be other lines.
    digest = hashlib.sha256(f"{_kind(path)} {measure(path).sha256}".encode()).digest()
    return FileScan(digest=digest, lines=rows, begins=places.begins(targets, stream, offset))


def read(path: Path, begin: int, end: int | None) -> Iterator[bytes | BadLine]:
    """Yield the rows from one offset to another as JSON objects; the first one of all is empty.

    Raises:
        ConfigError: the first row has a key twice.
    """
    delimiter = _delimiter(path)
    with streams.opened(path) as stream:
        _, keys = next(_rows(stream, 0, delimiter), (0, []))
    if isinstance(keys, BadLine):
        raise ConfigError((f"{path}:row 1: {keys}",))
    if twice := [key for key, times in Counter(keys).items() if key and times > 1]:
        found = f"found {', '.join(twice)} twice"
        raise ConfigError((f"{path}:row 1: expected a name for each column, {found}",))
    with streams.opened(path, begin) as stream:
        for offset, cells in _rows(stream, begin, delimiter):
            if end is not None and offset >= end:
                break
            if isinstance(cells, BadLine):
                yield cells
            elif not cells or not offset:
                yield b""
            else:
                yield _record(keys, cells)


def count(path: Path, line_bytes: float) -> int:
    """Return about how many rows there are."""
    return max(1, round(streams.size(path) / line_bytes))


def _kind(path: Path) -> str:
    """Return `.csv` or `.tsv`."""
    return next(suffix for suffix in reversed(path.suffixes) if suffix.lower() in SUFFIXES).lower()


def _delimiter(path: Path) -> str:
    """Return what stands between cells; spreadsheets of some languages write semicolons."""
    if _kind(path) == ".tsv":
        return "\t"
    with streams.opened(path) as stream:
        header = stream.bytes.readline().decode("latin-1")
    return max(DELIMITERS, key=header.count)


def _rows(stream: Stream, begin: int, delimiter: str) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield each row with the offset of its beginning."""
    csv.field_size_limit(LONGEST)
    offset = begin

    def lines() -> Iterator[str]:
        nonlocal offset
        for line in stream.bytes:
            text = line.removeprefix(b"" if offset else BOM)
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


def _record(keys: list[str], cells: list[str]) -> bytes | BadLine:
    """Return a row as JSON; a byte that is no UTF-8 stays, for the reader of the line to name."""
    if len(cells) != len(keys):
        return BadLine(f"expected {len(keys)} cells as in row 1, found {len(cells)}")
    record = {key: cell for key, cell in zip(keys, cells, strict=True) if key}
    return json.dumps(record, ensure_ascii=False).encode(errors="surrogateescape")
