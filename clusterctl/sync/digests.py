"""The digests of a folder's files, kept from one sync to the next in the user's cache."""

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
import zlib
from pathlib import Path

from clusterctl.node.mirror.manifest import stat_key
from clusterctl.node.mirror.tree_hash import digest_of, path_text
from clusterctl.own_files import NotPrivateError, make_private, replace_file

logger = logging.getLogger(__name__)

SCHEMA = 1
SETTLED_NS = 3_000_000_000
"""A file must be unchanged for so long before its digest is kept: file times can be coarse.

A change within the same tick as the last one does not show in the times. The coarsest tick of a
common filesystem is 2 s.
"""
KEPT_SECONDS = 60 * 86400.0
"""A folder that was not synced for so long is forgotten."""


class Digests:
    """Digests by path; one is valid as long as size, times and inode of the file are the same."""

    def __init__(self, folder: Path) -> None:
        """Read what is kept of a folder; a cache that is missing or damaged is empty."""
        self._root = os.fsencode(folder) + b"/"
        self._now, self._device = _filesystem(folder)
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
        self._path = _cache_folder() / f"{name[:32]}.json"
        self._known: dict[str, list[object]] = {}
        self._kept: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            check, _, data = self._path.read_bytes().partition(b"\n")
            document = json.loads(data) if check == _check(data) else {}
            if document["schema"] == SCHEMA and document["device"] == self._device:
                self._known = dict(document["files"])

    def of(self, path: bytes, kind: str, status: os.stat_result) -> str:
        """Return the digest of a file or link; it is read unless it is known and unchanged.

        Raises:
            OSError: it cannot be read.
        """
        if not stat.S_ISREG(status.st_mode):
            return digest_of(self._root + path, kind)
        known = self._known_of(path, status)
        if known is not None:
            self._kept[path_text(path)] = known
            return str(known[-1])
        digest = digest_of(self._root + path, kind)
        if self._is_settled(status):
            self._kept[path_text(path)] = [*stat_key(status), digest]
        return digest

    def unread_bytes(self, path: bytes, status: os.stat_result) -> int:
        """Return the bytes that `of` would read."""
        unread = stat.S_ISREG(status.st_mode) and self._known_of(path, status) is None
        return status.st_size if unread else 0

    def _known_of(self, path: bytes, status: os.stat_result) -> list[object] | None:
        known = self._known.get(path_text(path))
        same = known is not None and known[:-1] == [*stat_key(status)]
        return known if same and status.st_dev == self._device else None

    def save(self) -> None:
        """Keep the digests of what was asked for; no cache is no error."""
        if self._kept == self._known:
            with contextlib.suppress(OSError):
                os.utime(self._path)
            return
        document = {"schema": SCHEMA, "device": self._device, "files": self._kept}
        try:
            make_private(self._path.parent.parent, self._path.parent)
            _forget_old(self._path.parent)
            data = json.dumps(document, separators=(",", ":")).encode()
            replace_file(self._path, _check(data) + b"\n" + data)
        except NotPrivateError as error:
            hint = error.hint or f"remove {error.filename}, as its owner"
            logger.warning("cannot cache file digests: %s; hint: %s", error.strerror, hint)
        except OSError as error:
            logger.info("%s: cannot cache file digests: %s", self._path, error)

    def _is_settled(self, status: os.stat_result) -> bool:
        """Say whether a change from now on would show in the file's times."""
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        return status.st_dev == self._device and changed < self._now - SETTLED_NS


def _filesystem(folder: Path) -> tuple[int, int]:
    """Return the time by a folder's own filesystem in ns, and its device.

    The clock of a file server differs from ours, and only its own tells the age of its files. The
    time is 0 if the folder cannot be written: then no file counts as settled.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_dev


def _check(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _cache_folder() -> Path:
    import platformdirs  # noqa: PLC0415  (`clusterctl --help` must be quick)

    return platformdirs.user_cache_path("clusterctl") / "digests"


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
