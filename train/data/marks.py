"""Places in the files of a data set, and the lines that begin there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from train.data.bad_line import BadLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the data; of a table a row, of a JSON array an item."""

    number: int
    """Counted over all files, from 0."""
    where: str
    """`file:line`, as a person counts."""
    content: bytes | BadLine
    """A JSON object, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The beginning of a line."""

    file: int
    """Which of the files."""
    offset: int
    """How far into it, as its format counts: bytes when decompressed, or rows."""
    line: int
    """Lines before it, over all files."""
    within: int
    """Lines before it in its file."""


BEGIN = Mark(file=0, offset=0, line=0, within=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """What one pass over a file finds."""

    digest: bytes
    """SHA-256 of its content."""
    lines: int
    begins: tuple[tuple[int, int], ...]
    """For each target the offset of the next line that a reader can begin at, and the lines
    before it; fewer where the file ends first."""


class Format(Protocol):
    """How the lines of a file are stored."""

    LINE: str
    """What stands before the number of a line in `file:line`."""

    def scan(self, path: Path, targets: Sequence[int]) -> FileScan:
        """Read a file once; the targets are bytes into it, rising."""

    def read(self, path: Path, begin: int, end: int | None) -> Iterator[bytes | BadLine]:
        """Yield the lines from one offset to another, each a JSON object, nothing or a fault."""

    def count(self, path: Path, line_bytes: float) -> int:
        """Return about how many lines a file has, if one takes so many bytes as JSON."""
