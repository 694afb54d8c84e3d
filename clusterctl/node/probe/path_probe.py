"""What one path is, whether it can be written, and a digest that equal contents share."""

from __future__ import annotations

import errno
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

FILES_LIMIT = 100_000
"""Files of a folder that are looked at; more, and the digest covers these only."""
READ_FILES = 16
"""The largest files, whose ends are read; of the others the size must do."""
END_BYTES = 64 * 1024


def probe_path(question: Dict[str, Any]) -> Dict[str, Any]:
    """Look at a path.

    Args:
        question: `path`; `write`: try to write there; `digest`: compute the digest.

    Returns:
        What was found; `problem` where the system refused.
    """
    path = os.path.expanduser(question["path"])
    answer: Dict[str, Any] = {"exists": False, "real": os.path.realpath(path)}
    try:
        status = os.stat(path)
        answer.update(exists=True, folder=stat.S_ISDIR(status.st_mode), size=status.st_size)
    except FileNotFoundError:
        answer["exists"] = False
    except OSError as error:
        answer.update(exists=None, problem=error.strerror)
        return answer
    near = _nearest_folder(path)
    answer["near"] = os.path.realpath(near)
    space = os.statvfs(near)
    answer["free"] = space.f_bavail * space.f_frsize
    answer["total"] = space.f_blocks * space.f_frsize
    if question.get("write"):
        answer.update(_try_write(near))
    if question.get("digest") and answer["exists"]:
        try:
            answer.update(_digest(path))
        except OSError as error:
            answer["problem"] = "%s: %s" % (error.filename, error.strerror)
    return answer


def _nearest_folder(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


def _try_write(folder: str) -> Dict[str, Any]:
    """Make a file and remove it: permission bits say nothing of root squash or a full quota."""
    name = os.path.join(folder, ".clusterctl-%d-%d" % (os.getpid(), time.time_ns()))
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(name)
    except OSError as error:
        return {"writable": False, "problem": error.strerror}
    return {"writable": True}


def _digest(path: str) -> Dict[str, Any]:
    """Digest names and sizes of all files, and both ends of the largest."""
    import hashlib  # noqa: PLC0415  (start-up counts)

    files = _sizes(path)
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(b"%s\0%d\n" % (name.encode("utf-8", "surrogateescape"), size))
    largest = sorted(files, key=lambda entry: (-entry[1], entry[0]))[:READ_FILES]
    for name, size in largest:
        if size <= 0:
            break
        with open(os.path.join(path, name) if name else path, "rb") as file:
            digest.update(file.read(END_BYTES))
            file.seek(max(size - END_BYTES, 0))
            digest.update(file.read(END_BYTES))
    return {
        "digest": digest.hexdigest(),
        "size": sum(size for _, size in files if size > 0),
        "entries": len(files),
    }


def _sizes(path: str) -> List[Tuple[str, int]]:
    if not os.path.isdir(path):
        return [("", os.path.getsize(path))]
    return sorted(entry for _, entry in zip(range(FILES_LIMIT), _walk(path)))


def _walk(path: str) -> Iterator[Tuple[str, int]]:
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            yield os.path.relpath(full, path), _size(full)


def _size(path: str) -> int:
    """Return a file's size; -1 for what has no content of its own to be read.

    A link that leads nowhere, so that the folder is different from one that has the file; a pipe or
    a socket, which would keep its reader for ever.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
