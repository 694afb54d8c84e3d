"""Reads and writes of small files and folders, with one answer for whatever fails."""

from __future__ import annotations

import os

from clusterctl.wire import from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple, Union

JSON_LIMIT = 256 * 1024 * 1024
"""Bytes that a JSON file may have."""


def list_folder(folder: str) -> List[str]:
    """Return the sorted names in a folder; none of one that cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_file(path: str) -> bytes:
    """Return what is in a file; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def modified(path: str) -> float:
    """Return when a file was written, 0 if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def read_end(path: str, count: int) -> bytes:
    """Return at most so many of a file's last bytes; none of one that cannot be read."""
    return find_end(path, count)[1]


def find_end(path: str, count: int) -> Tuple[int, bytes]:
    """Return where a file's last bytes begin, at most so many, and these bytes."""
    try:
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - count)
            file.seek(begin)
            return begin, file.read(count)
    except OSError:
        return 0, b""


def read_json(path: Union[str, bytes]) -> Dict[str, Any]:
    """Return a JSON file's object; an empty one if there is none (yet), or something else."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > JSON_LIMIT:
            return {}  # to open a pipe would wait for its writer
        with open(path, "rb") as file:
            value = from_json(file.read().strip())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def overwrite_start(path: str, data: bytes) -> None:
    """Write over a file's first bytes: on a full disk, too, if it has them; or raise OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)
