"""Files that come to a node as one value, where to start rsync would take longer than to send them.

It is a frame of `wire` for each file or link, all deflated together.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib

from clusterctl.node.mirror.safe_open import RootFolder
from clusterctl.node.mirror.tree_hash import LINK, path_bytes
from clusterctl.wire import Message, read_message


def write_files(root: bytes, temporary: bytes, packed: bytes) -> str:
    """Write files to a folder, each whole or not at all; return why one could not be, else nothing.

    Args:
        root: the folder.
        temporary: a folder of its own in the same filesystem, that files are written to first.
        packed: the files.
    """
    stream = io.BytesIO(zlib.decompress(packed))
    part = os.path.join(temporary, b"part")
    with RootFolder(root) as inside:
        while (file := read_message(stream)) is not None:
            name = file.head["path"]
            path = path_bytes(name)
            try:
                _write_one(part, file, inside.parent(path, make=True), os.path.basename(path))
            except OSError as error:
                return "%s: %s" % (name, error.strerror)
    return ""


def _write_one(part: bytes, file: Message, parent: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    mode, times = file.head["mode"], (file.head["mtime_ns"],) * 2
    if file.head["kind"] == LINK:
        os.symlink(file.body, part)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(part, flags, mode), "wb") as written:
            written.write(file.body)
            _keep_mode(written.fileno(), mode, parent, name)
    os.utime(part, ns=times, follow_symlinks=False)
    os.rename(part, name, dst_dir_fd=parent)


def _keep_mode(descriptor: int, wanted: int, parent: int, name: bytes) -> None:
    """Give a file the mode of the one that it replaces, but for x, as rsync -E does."""
    with contextlib.suppress(FileNotFoundError):
        before = os.lstat(name, dir_fd=parent)
        if stat.S_ISREG(before.st_mode):
            mode = before.st_mode & 0o777
            if not wanted & 0o111:
                mode &= ~0o111
            elif not mode & 0o111:
                mode |= (mode & 0o444) >> 2
            os.fchmod(descriptor, mode)
