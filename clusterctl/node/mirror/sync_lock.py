"""One sync at a time in a mirrored folder, and none while a run starts there: the locks.

Syncs keep each other out by a file in our folder, which names its holder. A run that starts takes
the folder itself too, shared: there may be no such file yet, and none of ours belongs there then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import Any, Dict, Iterator, Optional

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.mirror.manifest import FOLDER
from clusterctl.node.mirror.tree_hash import path_text

CONTROLLER_SECONDS = 30.0
"""A controller that is silent for so long holds the lock no longer; it speaks every few seconds."""

HOLDER_LIMIT = 65536
"""Bytes of a lock file that are read: whoever may write to the folder may write anything there."""

NAME_LIMIT = 200
"""Characters of each word of it that are shown."""
AGAIN = "sync again when it is done"

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def hold_lock(root: bytes, holder: Dict[str, Any]) -> Iterator[bool]:
    """Hold the folder against other syncs, for as long as this process lives.

    Args:
        root: the mirrored folder.
        holder: `sync` (its id), `user`, `host`, `folder`: who syncs, from where.

    Yields:
        Whether nobody else holds it, another node's part of this very sync included.

    Raises:
        OperationError: `locked`: another sync holds it, or a run starts in it.
    """
    descriptor = _opened(os.path.join(root, FOLDER))
    if descriptor is None:
        yield False  # nothing of ours can write here either, so there is nothing to keep apart
        return
    writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    with open(descriptor, "r+" if writable else "r") as file, contextlib.ExitStack() as held:
        alone = named = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                other = _read_holder(descriptor)
                # Nodes may share this folder unknown to the controller: the lock is its own then.
                if not other.get("sync") or other["sync"] != holder.get("sync"):
                    raise _locked(other) from error
            elif error.errno == errno.EBADF and not writable:  # NFS
                raise _not_lockable(os.fstat(descriptor).st_uid) from error
            # Some filesystems have no locks; the manifest is still replaced whole.
        else:
            alone = True
            if not held.enter_context(_flocked(root, os.O_DIRECTORY, fcntl.LOCK_EX)):
                raise OperationError("locked", "a run is starting here", hint=AGAIN)
            named = writable and os.fstat(descriptor).st_nlink == 1  # else a file elsewhere too
        if named:
            file.truncate()
            json.dump({**holder, "since": time.time(), "pid": os.getpid()}, file)
            file.flush()
        try:
            yield alone
        finally:
            if named:
                file.truncate(0)  # the next holder may be unable to write a name of its own


@contextlib.contextmanager
def keep_syncs_out(root: bytes) -> Iterator[None]:
    """Let no sync change the folder while a run starts in it; several runs may start at once.

    Raises:
        OperationError: `busy`: a sync writes there.
    """
    lock = os.path.join(root, FOLDER, b"lock")
    both = ((root, os.O_DIRECTORY), (lock, os.O_NOFOLLOW | os.O_NONBLOCK))
    with contextlib.ExitStack() as held:
        for path, flags in both:
            if not held.enter_context(_flocked(path, flags, fcntl.LOCK_SH)):
                message, hint = "a sync writes to workdir %s now%s", "launch again when it is done"
                who = _describe(_holder_of(lock))
                raise OperationError("busy", message % (path_text(root), who), hint=hint)
        yield


@contextlib.contextmanager
def _flocked(path: bytes, flags: int, how: int) -> Iterator[bool]:
    """Lock a file or folder; False: others hold it. What is missing or has no locks is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            is_free = error.errno not in _TAKEN
        else:
            is_free = True
        yield is_free
    finally:
        os.close(descriptor)


def _opened(folder: bytes) -> Optional[int]:
    """Open the lock, another user's only to be read; None: we may write nothing here."""
    path, flags = os.path.join(folder, b"lock"), os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    if not os.access(folder, os.W_OK):
        return None
    return os.open(path, os.O_RDONLY | flags)


def _holder_of(lock: bytes) -> Dict[str, Any]:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> Dict[str, Any]:
    """Return what a lock file says of its holder; nothing of one that says something else."""
    try:
        found = json.loads(os.pread(descriptor, HOLDER_LIMIT, 0))
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
    """Return who syncs, from where, since when, to follow a sentence; empty if nobody says."""
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
