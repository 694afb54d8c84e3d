"""One sync at a time in a mirrored folder: the lock, and what the others learn of its holder."""

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
        OperationError: `locked`: another sync holds it.
    """
    descriptor = _opened(os.path.join(root, FOLDER))
    if descriptor is None:
        yield False  # nothing of ours can write here either, so there is nothing to keep apart
        return
    writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    with open(descriptor, "r+" if writable else "r") as file:
        alone = named = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                other = _read(file.read())
                # Nodes may share this folder unknown to the controller: the lock is its own then.
                if not other.get("sync") or other["sync"] != holder.get("sync"):
                    raise _locked(other) from error
            elif error.errno == errno.EBADF and not writable:  # NFS
                raise _not_lockable(os.fstat(descriptor).st_uid) from error
            # Some filesystems have no locks; the manifest is still replaced whole.
        else:
            alone = True
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


def _read(content: str) -> Dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _locked(other: Dict[str, Any]) -> OperationError:
    message = "another sync writes here now"
    hint = "sync again when it is done"
    if "host" in other:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(_number(other.get("since"))))
        who = (other.get("user", "?"), other["host"], other.get("folder", ""), since)
        message += ": %s from %s:%s, since %s" % who
        hint += "; a controller that is cut off loses the lock after %.0f s" % CONTROLLER_SECONDS
    return OperationError("locked", message, hint=hint)


def _not_lockable(uid: int) -> OperationError:
    message = "%s belongs to uid %d, and this filesystem lets only its writers lock it"
    hint = "chmod g+w that file as its owner"
    return OperationError(
        "locked", message % (path_text(os.path.join(FOLDER, b"lock")), uid), hint=hint
    )


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0
