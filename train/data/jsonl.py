"""JSON lines: one object a line of text; a reader can begin at any line."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from train.data.marks import FileScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LINE = ""
BLOCK = 1 << 22


def scan(path: Path, targets: Sequence[int]) -> FileScan:
    """Return the digest, the number of lines, and the first line at each target or after it."""
    digest = hashlib.sha256()
    begins: list[tuple[int, int]] = []
    offset, lines, last = 0, 0, b"\n"
    for block in _blocks(path):
        digest.update(block)
        for target in targets[len(begins) :]:
            at = block.find(b"\n", max(0, target - 1 - offset)) + 1
            if not at:
                break
            begins.append((offset + at, lines + block.count(b"\n", 0, at)))
        lines += block.count(b"\n")
        offset += len(block)
        last = block[-1:]
    lines += last != b"\n"
    return FileScan(digest=digest.digest(), lines=lines, begins=tuple(begins))


def read(path: Path, begin: int, end: int | None) -> Iterator[bytes]:
    """Yield the lines from one byte to another; some may be empty."""
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if end is not None and begin >= end:
                break
            begin += len(line)
            yield line


def count(path: Path, line_bytes: float) -> int:
    """Return about how many lines there are."""
    return round(path.stat().st_size / line_bytes)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
