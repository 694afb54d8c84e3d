"""JSON lines: one object a line of text; a reader can begin at any line."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from train.data import streams
from train.data.marks import FileScan
from train.files import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LINE = ""
BLOCK = 1 << 22


def scan(path: Path, targets: Sequence[int]) -> FileScan:
    """Return the digest, the number of lines, and the first line at each target or after it."""
    digest = hashlib.sha256()
    begins: list[tuple[int, int]] = []
    places = streams.Places()
    offset, lines, last = 0, 0, b"\n"
    with streams.opened(path) as stream:
        exact = () if stream.compressed else targets
        while block := stream.bytes.read(BLOCK):
            digest.update(block)
            for target in exact[len(begins) :]:
                at = block.find(b"\n", max(0, target - 1 - offset)) + 1
                if not at:
                    break
                begins.append((offset + at, lines + block.count(b"\n", 0, at)))
            at, before = 0, lines
            while stream.compressed and (
                end := block.find(b"\n", max(at, places.next - 1 - offset)) + 1
            ):
                before += block.count(b"\n", at, end)
                places.add(offset + end, before)
                at = end
            lines += block.count(b"\n")
            offset += len(block)
            last = block[-1:]
    lines += last != b"\n"
    if not stream.compressed:
        return FileScan(digest=digest.digest(), lines=lines, begins=tuple(begins))
    # Other marks belong to the same lines in another compression: that is another file.
    whole = bytes.fromhex(measure(path).sha256)
    return FileScan(digest=whole, lines=lines, begins=places.begins(targets, stream, offset))


def read(path: Path, begin: int, end: int | None) -> Iterator[bytes]:
    """Yield the lines from one offset to another; some may be empty."""
    with streams.opened(path, begin) as stream:
        for line in stream.bytes:
            if end is not None and begin >= end:
                break
            begin += len(line)
            yield line


def count(path: Path, line_bytes: float) -> int:
    """Return about how many lines there are."""
    return round(streams.size(path) / line_bytes)
