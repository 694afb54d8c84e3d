"""Files as one value for many nodes: sent at once, while an rsync would still be starting."""

import contextlib
import functools
import os
import threading
import zlib
from pathlib import Path

from clusterctl.node.mirror.tree_hash import LINK, entry_kind, path_text
from clusterctl.wire import Message

SMALL = 4 << 20
"""Bytes of files up to which they are sent at once; of more, rsync sends what has changed."""
_HEAD = 128
"""What each file counts besides its content."""


def pack(source: Path, sync: str, paths: list[bytes]) -> bytes | None:
    """Return files of a folder for `node.mirror.small_files`; None: they are too large.

    Nodes mostly need the same ones: a sync, known by its id, reads these once.
    What has vanished is left out, and what has changed is found by the node.
    """
    with _packing:
        return _packed(source, sync, tuple(paths))


_packing = threading.Lock()


@functools.lru_cache(maxsize=2)
def _packed(source: Path, sync: str, paths: tuple[bytes, ...]) -> bytes | None:
    del sync
    left = SMALL
    deflate = zlib.compressobj(1)
    parts = []
    for path in paths:
        with contextlib.suppress(OSError):
            full = source / os.fsdecode(path)
            status = full.lstat()
            kind = entry_kind(status)
            left -= _HEAD + status.st_size
            if left < 0:
                return None
            if kind is None:
                continue
            head = {
                "path": path_text(path),
                "kind": kind,
                "mode": status.st_mode & 0o777,
                "mtime_ns": status.st_mtime_ns,
            }
            # A Path would lose a `/` at its end.
            content = os.fsencode(os.readlink(full)) if kind == LINK else full.read_bytes()  # noqa: PTH115
            parts.append(deflate.compress(Message(head, content).encode()))
    return b"".join([*parts, deflate.flush()])
