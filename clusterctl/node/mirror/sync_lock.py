"""One sync at a time in a mirrored folder, and none while a run starts there: the lock.

It is a file in our folder. A sync holds it alone and writes its name into it, runs that start hold
it together. Any process that can open a file can lock it, so only those who may write to the
mirrored folder can open this one. A run that starts where no sync ever was makes it, and takes it
away again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.mirror.manifest import FOLDER
from clusterctl.node.mirror.tree_hash import path_text
from clusterctl.wire import from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Optional, Tuple

CONTROLLER_SECONDS = 30.0
"""A controller that is silent for so long holds the lock no longer; it speaks every few seconds."""

HOLDER_LIMIT = 65536
"""Bytes of a lock file that are read: whose size any user of the folder can choose."""

NAME_LIMIT = 200
"""Characters of each word of it that are shown."""
AGAIN = "sync again when it is done"

REMOVAL_SECONDS = 0.2
"""Longer than a run that has started takes to remove the lock."""
_POLL_SECONDS = 0.01

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def hold_lock(root: bytes, holder: Dict[str, Any]) -> Iterator[bool]:
    """Hold the folder against other syncs, for as long as this process lives.

    Args:
        root: the mirrored folder.
        holder: `sync` (its id), `user`, `host`, `folder`: who syncs, from where.

    Yields:
        Whether no other process holds it, another node's part of this very sync included.

    Raises:
        OperationError: `locked`: another sync holds it, or a run starts in it.
    """
    descriptor, problem = _take(root, fcntl.LOCK_EX)
    if not os.access(os.path.join(root, FOLDER), os.W_OK):
        if descriptor is not None:
            os.close(descriptor)
        yield False  # clusterctl cannot write here either, so there is nothing to keep apart
        return
    if descriptor is None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), _lock_of(root))
    writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    with open(descriptor, "r+" if writable else "r") as file:
        if problem is not None:
            _refuse(descriptor, problem, holder, writable=writable)
        named = problem is None and writable and os.fstat(descriptor).st_nlink == 1
        if named:  # else it is a file elsewhere too
            file.truncate()
            file.write(to_json({**holder, "since": time.time(), "pid": os.getpid()}).decode())
            file.flush()
        try:
            yield problem is None
        finally:
            if named:
                file.truncate(0)  # the next holder may be unable to write a name of its own


@contextlib.contextmanager
def keep_syncs_out(root: bytes) -> Iterator[None]:
    """Let no sync change the folder while a run starts in it; several runs may start at once.

    Those who may not write to the folder start without: they could not be distinguished from others
    who only read it, and none of these may hold up its owner.
    """
    try:
        descriptor, problem = _take(root, fcntl.LOCK_SH)
    except OSError:  # no room for a file, or another kind of file is there
        descriptor, problem = None, None
    if descriptor is None:
        yield
        return
    try:
        if problem is not None and problem.errno in _TAKEN:
            message, hint = "a sync writes to workdir %s now%s", "launch again when it is done"
            who = _describe(_read_holder(descriptor))
            raise OperationError("busy", message % (path_text(root), who), hint=hint)
        try:
            yield
        finally:
            _remove_unused(root, descriptor)
    finally:
        os.close(descriptor)


def _lock_of(root: bytes) -> bytes:
    return os.path.join(root, FOLDER, b"lock")


def _take(root: bytes, how: int) -> Tuple[Optional[int], Optional[OSError]]:
    """Open and lock the file; return it, and why it is not locked.

    None: there is none that we may open. A file that was taken away meanwhile locks nothing: then
    the next one is locked.
    """
    until = time.monotonic() + REMOVAL_SECONDS
    while True:
        descriptor, problem = _opened(root), None
        if descriptor is None:
            return None, None
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            problem = error
        taken = problem is not None and problem.errno in _TAKEN
        unnamed = taken and not os.fstat(descriptor).st_size  # perhaps it is being taken away
        if (_is_current(root, descriptor) and not unnamed) or time.monotonic() > until:
            return descriptor, problem
        os.close(descriptor)
        time.sleep(_POLL_SECONDS)


def _opened(root: bytes) -> Optional[int]:
    """Open the lock, another user's perhaps only to be read; None: that is not for us."""
    folder, flags = os.path.join(root, FOLDER), os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        os.mkdir(folder)
    try:
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        with contextlib.suppress(FileExistsError):
            made = os.open(
                b"lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=inside
            )
            _close_to_readers(root, made, is_new=True)
            return made
        with contextlib.suppress(PermissionError):
            found = os.open(b"lock", os.O_RDWR | flags, dir_fd=inside)
            _close_to_readers(root, found, is_new=False)
            return found
        return os.open(b"lock", os.O_RDONLY | flags, dir_fd=inside)
    except OSError as error:
        if error.errno not in (*_READ_ONLY, errno.ENOENT):
            raise
        return None
    finally:
        os.close(inside)


def _close_to_readers(root: bytes, descriptor: int, *, is_new: bool) -> None:
    """Let only those open the lock who may write to the folder; earlier versions let all read it.

    A file that was there before gets no new permissions: it may be another user's.
    """
    seen, folder = os.fstat(descriptor), os.stat(root)
    with contextlib.suppress(OSError):  # another user's
        if is_new and seen.st_gid != folder.st_gid:
            os.fchown(descriptor, -1, folder.st_gid)
        shared = 0o060 if folder.st_mode & stat.S_IWGRP else 0
        mode = 0o600 | shared | (0o006 if folder.st_mode & stat.S_IWOTH else 0)
        mode = mode if is_new else mode & seen.st_mode
        if seen.st_nlink == 1 and mode != stat.S_IMODE(seen.st_mode):
            os.fchmod(descriptor, mode)


def _is_current(root: bytes, descriptor: int) -> bool:
    """Tell whether an open lock is still the folder's."""
    try:
        return os.path.samestat(os.lstat(_lock_of(root)), os.fstat(descriptor))
    except OSError:
        return False


def _remove_unused(root: bytes, descriptor: int) -> None:
    """Take the lock away, and our folder, where no sync ever was and no other run starts."""
    folder = os.path.join(root, FOLDER)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(root, descriptor) and os.listdir(folder) == [b"lock"]:
            os.unlink(_lock_of(root))
            os.rmdir(folder)


def _refuse(descriptor: int, problem: OSError, holder: Dict[str, Any], *, writable: bool) -> None:
    """Say who holds the lock; empty is allowed where the filesystem has no locks."""
    if problem.errno in _TAKEN:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            raise OperationError("locked", "a run is starting here", hint=AGAIN)
        other = _read_holder(descriptor)
        # Nodes may share this folder unknown to the controller: the lock is its own then.
        if not other.get("sync") or other["sync"] != holder.get("sync"):
            raise _locked(other) from problem
    elif problem.errno == errno.EBADF and not writable:  # NFS
        raise _not_lockable(os.fstat(descriptor).st_uid) from problem
    # Some filesystems have no locks; the manifest is still replaced whole.


def _read_holder(descriptor: int) -> Dict[str, Any]:
    """Return what a lock file says of its holder; nothing of one that says something else."""
    try:
        found = from_json(os.pread(descriptor, HOLDER_LIMIT, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _locked(other: Dict[str, Any]) -> OperationError:
    who = _describe(other)
    hint = AGAIN
    if who:
        hint += "; a controller that is cut off loses the lock after %.0f s" % CONTROLLER_SECONDS
    return OperationError("locked", "another sync writes here now" + who, hint=hint)


def _describe(holder: Dict[str, Any]) -> str:
    """Return who syncs, from where, since when, to follow a sentence; empty if unknown."""
    if "host" not in holder:
        return ""
    words = ("user", "?"), ("host", ""), ("folder", "")
    user, host, folder = (str(holder.get(key, absent))[:NAME_LIMIT] for key, absent in words)
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder["since"]))
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        when = "an unknown time"
    return ": %s from %s:%s, since %s" % (user, host, folder, when)


def _not_lockable(uid: int) -> OperationError:
    message = "%s belongs to uid %d, and this filesystem lets only its writers lock it"
    hint = "chmod g+w that file as its owner"
    return OperationError(
        "locked", message % (path_text(os.path.join(FOLDER, b"lock")), uid), hint=hint
    )
