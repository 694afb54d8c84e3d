"""What was mirrored into a folder: the record that says which files are ours to replace or delete.

It is kept in the folder itself, so that every node of a shared filesystem and every controller
knows the same. It is written before files change and again after, so a sync that was cut short
knows its own files.
"""

from __future__ import annotations

import os
from collections import namedtuple

from clusterctl.node.file_io import read_json
from clusterctl.node.mirror.tree_hash import Entry, digest_of, entry_kind, path_bytes, path_text
from clusterctl.own_files import replace_file
from clusterctl.wire import from_json, to_json

TYPE_CHECKING = False
# Every sync needs this: `typing` and `json` take a node longer to import than all of it.
if TYPE_CHECKING:
    from typing import Any, Dict, List, NamedTuple, Optional, Tuple

    class Record(NamedTuple):
        """What is known of one path."""

        digests: List[str]
        """Contents that came from us; two while a change is under way."""
        ours: bool
        """We put it there; otherwise it was found there, equal."""
        stat_key: List[int]
        """Size, times and inode when it was last hashed; empty: never."""

else:
    Record = namedtuple("Record", "digests ours stat_key")  # noqa: PYI024

SCHEMA = 1
FOLDER = b".clusterctl"
"""Our folder within the mirrored one; never part of a tree."""

NAME = os.path.join(FOLDER, b"manifest.json")

_NAME_LIMIT, _PATH_LIMIT = 255, 4095
"""Bytes that the system takes in a name, and in a whole path."""
MTIME_GRANULARITY_NS = 20_000_000
"""Within this time of the manifest a file may have changed without its times showing it."""


def sync_unfinished(root: bytes) -> bool:
    """Tell whether a sync has begun to change a folder, and has not verified the result."""
    return read_json(os.path.join(root, NAME)).get("tree", "") is None


class Manifest:
    """The record of one folder."""

    def __init__(self, root: bytes) -> None:
        """Read it; one that is missing or unreadable is empty, and then nothing there is ours."""
        self.path = os.path.join(root, NAME)
        self.tree: Optional[str] = None
        self.records: Dict[bytes, Record] = {}
        self.origin: Dict[str, str] = {}
        """`host` and `folder` that the tree was placed from; empty: not known."""
        self.stat_keys: Dict[bytes, List[int]] = {}
        """By path that `current` checked: what its file was before its content was read."""
        self._written = 0
        self._prefix = os.path.join(root, b"")
        try:
            with open(self.path, "rb") as file:
                document = from_json(file.read())
                self._written = os.fstat(file.fileno()).st_mtime_ns
            limit = _PATH_LIMIT - len(self._prefix)
            records = dict(_record(path, one, limit) for path, one in document["files"].items())
            origin = {str(k): str(v) for k, v in dict(document.get("from") or {}).items()}
            tree = document["tree"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self.tree, self.records, self.origin = tree, records, origin

    def current(self, path: bytes) -> Optional[Entry]:
        """Return what is at a path now; None: nothing, a folder or a special file.

        A file that was hashed before and whose size, times and inode are the same is not read.
        """
        full = self._prefix + path
        try:
            status = os.lstat(full)
            kind = entry_kind(status)
            if kind is None:
                return None
            self.stat_keys[path] = stat_key(status)
            record = self.records.get(path)
            if record and record.stat_key == self.stat_keys[path] and self._is_settled(status):
                return Entry(kind, record.digests[-1])
            return Entry(kind, digest_of(full, kind))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, tree: Optional[str], records: Dict[bytes, Record]) -> None:
        """Replace the record, whole; `tree` None: a change is under way."""
        self.tree, self.records = tree, records
        files = {path_text(path): list(record) for path, record in sorted(records.items())}
        document = {"schema": SCHEMA, "tree": tree, "from": self.origin, "files": files}
        replace_file(self.path, to_json(document), mode=0o666, sync=True)

    def _is_settled(self, status: os.stat_result) -> bool:
        return max(status.st_mtime_ns, status.st_ctime_ns) < self._written - MTIME_GRANULARITY_NS


def _record(path: str, item: List[Any], limit: int) -> Tuple[bytes, Record]:
    """Read one path's record; it may be forged: then raise TypeError or ValueError."""
    digests, ours, key = item
    whole = isinstance(digests, list) and isinstance(ours, bool) and isinstance(key, list)
    if not (whole and digests and all(isinstance(digest, str) for digest in digests)):
        raise TypeError(path)
    name = path_bytes(path)
    parts = name.split(b"/")
    longest = max(map(len, parts))
    inside = {b"", b".", b"..", FOLDER}.isdisjoint(parts) and b"\0" not in name
    if not inside or longest > _NAME_LIMIT or len(name) > limit:
        raise ValueError(path)
    return name, Record(digests, ours, key)


def stat_key(status: os.stat_result) -> List[int]:
    """Return what changes when a file does."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
