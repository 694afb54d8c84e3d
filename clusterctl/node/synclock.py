"""One sync at a time in a mirrored folder: the lock, and what the others learn of its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import Any, Dict, Iterator

from clusterctl.node.link import OperationError
from clusterctl.node.manifest import FOLDER

CONTROLLER_SECONDS = 30.0
"""A controller that is silent for so long holds the lock no longer; it speaks every few seconds."""

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def held(root: bytes, holder: Dict[str, Any]) -> Iterator[bool]:
    """Hold the folder against other syncs, for as long as this process lives.

    Args:
        root: the mirrored folder.
        holder: `sync` (its id), `user`, `host`, `folder`: who syncs, from where.

    Yields:
        Whether nobody else holds it, another node's part of this very sync included.

    Raises:
        OperationError: `locked`: another sync holds it.
    """
    try:
        descriptor = os.open(os.path.join(root, FOLDER, b"lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        yield False  # nothing of ours can write here either, so there is nothing to keep apart
        return
    with open(descriptor, "r+") as file:
        alone = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                other = _read(file.read())
                # Nodes may share this folder unknown to the controller: the lock is its own then.
                if not other.get("sync") or other["sync"] != holder.get("sync"):
                    raise _locked(other) from error
            # Some filesystems have no locks; the manifest is still replaced whole.
        else:
            file.truncate()
            json.dump({**holder, "since": time.time(), "pid": os.getpid()}, file)
            file.flush()
            alone = True
        yield alone


def _read(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
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


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0
