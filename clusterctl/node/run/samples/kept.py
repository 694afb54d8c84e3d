"""The samples of a run in its folder: one a line, the older the coarser, never more than 1 MiB."""

from __future__ import annotations

import contextlib
import json
import time
from typing import List, Sequence

from clusterctl.node.file_io import read_end
from clusterctl.node.run.files.run_files import append_whole
from clusterctl.node.run.samples.row import Row, thinned, unpacked
from clusterctl.own_files import replace_file
from clusterctl.wire import from_json

MOST_BYTES = 1 << 20
"""Of the file; while it is replaced, there are both."""
KEPT_BYTES = MOST_BYTES // 2
"""What a file that has grown so large is thinned to."""
PRECISIONS = (1 / 720, 1 / 360, 1 / 180, 1 / 90, 1 / 45, 1 / 20, 1 / 5)
"""A sample lasts at most that part of its age: the first one keeps minutes for half a day."""


def read_rows(path: str, *, since: float = 0.0) -> List[Row]:
    """Return the samples in a file that end after a moment, the oldest first."""
    found: List[Row] = []
    for line in reversed(read_end(path, 2 * MOST_BYTES).splitlines()):
        with contextlib.suppress(ValueError, TypeError, RecursionError):  # zeros after a crash
            row = unpacked(from_json(line))
            if row.time <= since:
                break
            found.append(row)
    return found[::-1]


def append_row(path: str, row: Row) -> None:
    """Append one; raise OSError if it was not written."""
    size = append_whole(path, _line(row))
    if size > MOST_BYTES:
        replace_file(path, thin(read_rows(path), time.time()))


def thin(rows: Sequence[Row], now: float) -> bytes:
    """Return the file of these samples, thinned until it is small enough."""
    lines: List[bytes] = []
    for precision in PRECISIONS:
        lines = [_line(row) for row in thinned(rows, now, precision)]
        if sum(map(len, lines)) <= KEPT_BYTES:
            break
    while sum(map(len, lines)) > KEPT_BYTES:
        del lines[: 1 + len(lines) // 10]
    return b"".join(lines)


def _line(row: Row) -> bytes:
    return json.dumps(row.packed(), separators=(",", ":")).encode() + b"\n"
