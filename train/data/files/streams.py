"""The bytes of a file, decompressed if need be, from any offset on.

The first bytes of a file show whether it is compressed, whatever its name is. It can only be read
from its beginning: a reader that begins in its middle decompresses what is before, and drops it. So
such a file has few parts, and memory does not grow with it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from train.errors import ConfigError

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
"""How a compressed file begins."""
SUFFIXES = (".gz", ".zst", ".bz2", ".xz")
PARTS = 32
"""Parts of a compressed file: each of their readers decompresses all that is before its part."""
BLOCK = 1 << 20
BOM = b"\xef\xbb\xbf"
"""What some programs put before UTF-8 text."""
MOST_PLACES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A file that is open; offsets are of its decompressed bytes."""

    bytes: BinaryIO
    raw: BinaryIO
    """The file as it is on disk."""
    compressed: bool
    size: int
    """On disk."""


class Places:
    """Lines at which a reader can begin, about as far apart as each other.

    How long a stream is shows at its end, so this keeps a line of each so many bytes, and fewer the
    longer it gets. That depends on the bytes alone: nodes that share the work find the same.
    """

    def __init__(self) -> None:
        self.next = 1
        """Offset from which on a line is wanted."""
        self._found: list[tuple[int, int]] = []
        self._step = 1

    def add(self, offset: int, lines: int) -> None:
        """Take a line, if it is wanted, with how many are before it."""
        if offset < self.next:
            return
        self._found.append((offset, lines))
        if len(self._found) > MOST_PLACES:
            self._step *= 2
            all_of_them, self._found, self.next = self._found, [], 1
            for place in all_of_them:
                if place[0] >= self.next:
                    self._found.append(place)
                    self.next = (place[0] // self._step + 1) * self._step
        self.next = (offset // self._step + 1) * self._step

    def begins(
        self, targets: Sequence[int], stream: Stream, length: int
    ) -> tuple[tuple[int, int], ...]:
        """Return the line at each target or after it: bytes of the file on disk."""
        part = max(1, stream.size // PARTS) if stream.compressed else 1
        begins = []
        for target in targets:
            place = -(-target // part) * part * length // max(1, stream.size)
            at = bisect_left(self._found, (place, 0))
            if at == len(self._found):
                break
            begins.append(self._found[at])
        return tuple(begins)


@contextmanager
def opened(path: Path, offset: int = 0) -> Iterator[Stream]:
    """Open a file at an offset of its decompressed bytes."""
    with path.open("rb") as raw:
        kind = compression(raw.read(8))
        size = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        if kind is None:
            raw.seek(offset)
            yield Stream(bytes=raw, raw=raw, compressed=False, size=size)
            return
        try:
            with io.BufferedReader(_decompressed(path, kind, raw), BLOCK) as file:
                while offset and (skipped := len(file.read(min(offset, BLOCK)))):
                    offset -= skipped
                yield Stream(bytes=file, raw=raw, compressed=True, size=size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            found = " ".join(str(error).split())
            problem = f"{path}: expected a whole {kind} file, found: {found}"
            raise ConfigError(problem) from error


def compression(start: bytes) -> str | None:
    """Return how a file is compressed that begins with these bytes."""
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def size(path: Path) -> int:
    """Return about how many bytes a file has when it is decompressed."""
    with opened(path) as stream:
        if not stream.compressed:
            return stream.size
        read = len(stream.bytes.read(4 * BLOCK))
        return read * stream.size // max(1, stream.raw.tell())


def _decompressed(path: Path, kind: str, raw: BinaryIO) -> Any:
    match kind:
        case "gzip":
            return gzip.GzipFile(fileobj=raw)
        case "bzip2":
            return bz2.BZ2File(raw)
        case "xz":
            return lzma.LZMAFile(raw)
    return pyarrow(path, "zstd").CompressedInputStream(raw, "zstd")


def pyarrow(path: Path, what: str) -> Any:
    """Return the package, which few need; refuse a file that only it can read if it is missing."""
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path}: expected pyarrow, which reads {what}, found that it is not installed",
            hint="pip install pyarrow, on every node",
        ) from None
