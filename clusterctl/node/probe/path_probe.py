"""What one path is, whether it can be written, and a digest that equal contents share."""

from __future__ import annotations

import errno
import os
import stat
import time

STATE = "/var/tmp/clusterctl-UID"  # noqa: S108  (0700, owner checked)
"""The usual folder of runs, as the controller names it; the number is this user's."""
_OF_MODELS = (".safetensors", ".index.json", ".bin")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Tuple

FILES_LIMIT = 100_000
"""Most files of a folder that are read: the digest covers no more."""
READ_FILES = 16
"""The largest files, whose ends are read; of the others the size must do."""
END_BYTES = 64 * 1024
BLOCK = 4096
SPEED_CHUNK = 1 << 20
SPEED_CHUNKS = 8
WRITE_SECONDS = 0.3
READ_SECONDS = 0.2
FILES_SECONDS = 0.1
"""Then the measurement ends, with what it has."""
STALL_SECONDS = 1.0
"""A first chunk that took less may have met a busy machine: a second one tells. The answer has
a limit of its own, which a slow disk must not exceed."""
SPEED_FILES = 20
"""Made, looked up and removed one after another."""


def probe_path(question: Dict[str, Any]) -> Dict[str, Any]:
    """Look at a path.

    Args:
        question: `path`; `write`: try to write there; `speed`: measure how fast; `digest`:
            compute the digest.

    Returns:
        What was found; `problem` where the system refused.
    """
    path = os.path.expanduser(question["path"])
    if path == STATE:
        path = STATE[: -len("UID")] + str(os.getuid())
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
    link = "" if answer["exists"] else _dangling_link(path)
    if link:
        answer.update(writable=False, problem=link)
        return answer
    space = os.statvfs(near)
    answer["free"] = space.f_bavail * space.f_frsize
    answer["total"] = space.f_blocks * space.f_frsize
    answer["free_files"] = space.f_favail
    answer["total_files"] = space.f_files
    if question.get("write"):
        answer.update(_try_write(near, speed=bool(question.get("speed"))))
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


def _dangling_link(path: str) -> str:
    """Describe the link by which a path leads nowhere; empty if there is none on the way."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.islink(path) or os.path.exists(path):
        return ""
    return "%s is a link to %s, which does not exist" % (path, os.readlink(path))


def _try_write(folder: str, *, speed: bool) -> Dict[str, Any]:
    """Make a file and write to it: permission bits do not show root squash or a full quota.

    The file has no name when it gets its content, so that nothing of it is left if we are killed.
    """
    name = os.path.join(folder, ".clusterctl-%d-%d" % (os.getpid(), time.time_ns()))
    try:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.unlink(name)
        except OSError:  # a filesystem that keeps the names of open files
            os.close(descriptor)
            os.unlink(name)
            return {"writable": True}
    except OSError as error:
        return {"writable": False, "problem": error.strerror}
    answer: Dict[str, Any] = {"writable": True}
    try:
        try:
            os.write(descriptor, bytes(BLOCK))
            if speed:
                answer.update(_measure(descriptor))
                answer["file_s"] = _seconds_of_a_file(name)
        finally:
            os.close(descriptor)  # NFS reports a full quota here
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            answer = {"writable": False, "problem": error.strerror}
    return answer


def _seconds_of_a_file(name: str) -> float:
    """Return how long it takes to make a small file, look it up and remove it."""
    began = time.monotonic()
    made = 0
    while made < SPEED_FILES and (not made or time.monotonic() - began < FILES_SECONDS):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            os.stat(name)
        finally:
            os.unlink(name)
        made += 1
    return (time.monotonic() - began) / made


def _measure(descriptor: int) -> Dict[str, float]:
    """Return the bytes a second of writes that reach the disk, and of reads that come from it."""
    chunk = os.urandom(SPEED_CHUNK)  # which no filesystem can compress

    def write() -> int:
        count = os.write(descriptor, chunk)
        os.fdatasync(descriptor)
        return count

    write_rate = _usual_rate(write, WRITE_SECONDS)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    read_rate = _usual_rate(lambda: len(os.read(descriptor, SPEED_CHUNK)), READ_SECONDS)
    return {"write_rate": write_rate, "read_rate": read_rate}


def _usual_rate(move: Callable[[], int], seconds: float) -> float:
    """Return the median rate of some chunks, of two the better: one stall is no slow disk."""
    rates: List[float] = []
    began = start = time.monotonic()
    while len(rates) < SPEED_CHUNKS:
        count = move()
        if not count:
            break
        end = time.monotonic()
        rates.append(count / max(end - start, 1e-6))
        if end - began > (STALL_SECONDS if len(rates) == 1 else seconds):
            break
        start = end
    return sorted(rates)[len(rates) // 2] if rates else 0.0


def _digest(path: str) -> Dict[str, Any]:
    """Digest names and sizes of all files, and both ends of the largest; check models."""
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
    answer: Dict[str, Any] = {
        "digest": digest.hexdigest(),
        "size": sum(size for _, size in files if size > 0),
        "entries": len(files),
    }
    if any(name.endswith(_OF_MODELS) for name, _ in files):
        from clusterctl.node.probe.model_files import check_model  # noqa: PLC0415  (models only)

        answer.update(check_model(path, dict(files)))
    return answer


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
    a socket, which would keep its reader forever.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
