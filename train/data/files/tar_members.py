"""WebDataset: a tar archive whose members `KEY.json` are objects, and `KEY.txt` texts.

A reader can begin at any member.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from train.data.files.bad_line import NO_UTF8, BadLine
from train.data.files.streams import Stream
from train.errors import ConfigError

SUFFIXES = (".json", ".txt")
MAGIC = 257, b"ustar"
"""Where a tar archive has which bytes."""


def is_archive(start: bytes) -> bool:
    """Return whether a file that begins like this is a tar archive."""
    return start[MAGIC[0] :].startswith(MAGIC[1])


def is_of_samples(start: bytes) -> bool:
    """Return whether the first member of an archive is a sample."""
    return start[:100].rstrip(b"\0").decode(errors="replace").lower().endswith(SUFFIXES)


def rows(path: Path, stream: Stream, begin: int) -> Iterator[tuple[int, bytes | BadLine]]:
    """Yield the members from an offset on as JSON objects, each with its own."""
    try:
        with tarfile.open(fileobj=stream.bytes, mode="r|") as archive:
            for member in archive:
                if file := archive.extractfile(member):
                    yield begin + member.offset, _object(member.name, file.read())
    except (tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{path}: expected a whole tar archive, found: {error}") from error


def _object(name: str, content: bytes) -> bytes | BadLine:
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        return BadLine(f"expected KEY.json or KEY.txt, found {name}")
    if suffix == ".json":
        return content
    try:
        return json.dumps({"text": content.decode()}).encode()
    except UnicodeDecodeError as error:
        return BadLine(f"{NO_UTF8}, found byte {content[error.start]:#x} in {name}")
