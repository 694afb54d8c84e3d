"""Files: hashed, written durably, or written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a checkpoint, as its manifest has it."""

    size: int
    sha256: str


def measure(path: Path) -> Entry:
    """Read a file whole and return its size and hash."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Entry(size, digest.hexdigest())


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file that survives a loss of power."""
    with path.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    aside = path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")
    write_durably(aside, text)
    aside.replace(path)


def sync_folder(folder: Path) -> None:
    """Make a folder's own list of names durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
