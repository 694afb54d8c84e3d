"""Parquet: a row is an object, read as the line of JSON that says the same.

A reader can begin at any row, though it decodes the row group from its beginning: many files have
a single one. Rows are decoded in small batches, and their pages are read as they are needed: memory
does not grow with the file.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from train.config.datasets import IN_LINES
from train.data import formats
from train.data.files import streams
from train.errors import ConfigError

NOUN = "row "
BATCH = 256
"""Rows decoded together."""
BUFFER = 1 << 20
"""Bytes of a column that are read ahead; without a buffer a whole row group would be."""


def scan(path: Path, targets: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the number of rows, and the first row at each target, given in bytes, or after it."""
    rows = count(path)
    # Rows take about the same room: so one begins at about this byte.
    starts = (-(-target * rows // path.stat().st_size) for target in targets)
    return rows, tuple((start, start) for start in starts if start < rows)


def read(
    path: Path, begin: int, end: int | None, also: frozenset[str] = frozenset()
) -> Iterator[bytes]:
    """Yield the rows from one number to another as JSON objects.

    Other columns than those of the known forms and those of `also` are not read, if some are there.
    """
    with _opened(path) as file:
        groups, row = _groups(file.metadata, begin, end)
        names = file.schema_arrow.names
        known = formats.Rules().form_of(dict.fromkeys(names)) or not also.isdisjoint(names)
        for batch in file.iter_batches(
            BATCH,
            columns=[name for name in names if name in IN_LINES | also] if known else None,
            row_groups=groups,
            use_threads=False,
        ):
            wanted = batch.slice(min(len(batch), max(0, begin - row)))
            row += len(batch)
            if end is not None and row >= end:
                yield from _lines(wanted.slice(0, len(wanted) - (row - end)))
                break
            yield from _lines(wanted)


def _groups(metadata: Any, begin: int, end: int | None) -> tuple[list[int], int]:
    """Return the row groups that have rows of a stretch, and the number of their first row."""
    groups: list[int] = []
    row = first = 0
    for number in range(metadata.num_row_groups):
        after = row + metadata.row_group(number).num_rows
        if after > begin and (end is None or row < end):
            first = first if groups else row
            groups.append(number)
        row = after
    return groups, first


def count(path: Path) -> int:
    """Return how many rows there are."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    arrow_error = streams.pyarrow(path, "Parquet").ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            yield file
    except (arrow_error, OSError, OverflowError, ValueError) as error:
        found = " ".join(str(error).split())
        raise ConfigError(f"{path}: expected Parquet, found: {found}") from error


def _as_text(value: Any) -> str:
    """Return what JSON has no form for as text: bytes, such as an image's, as a data URL."""
    if isinstance(value, bytes):
        return f"data:;base64,{base64.b64encode(value).decode()}"
    return str(value)


def _lines(batch: Any) -> Iterator[bytes]:
    try:
        for record in batch.to_pylist():
            yield json.dumps(record, default=_as_text).encode()
    except UnicodeDecodeError as error:
        if len(batch) == 1:
            yield error.object  # the reader of the line names the bad byte
            return
        for row in range(len(batch)):
            yield from _lines(batch.slice(row, 1))
