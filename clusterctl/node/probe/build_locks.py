"""Which locks of torch's extension builds exist, and whether a process still has them open."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List

MOST = 20
"""Locks to tell of."""


def describe_locks(paths: Iterable[str], proc: str = "/proc") -> List[Dict[str, Any]]:
    """Return path, age and `held` of each lock; torch holds one open while it builds.

    Of another user's processes that cannot be seen, so a lock of theirs counts as held.
    """
    found: Dict[str, Dict[str, Any]] = {}
    for path in paths:
        if len(found) == MOST:
            break
        try:
            status = os.stat(path)
        except OSError:
            continue  # released meanwhile
        age = max(time.time() - status.st_mtime, 0.0)
        held = os.geteuid() not in (0, status.st_uid)
        found[os.path.realpath(path)] = {"path": path, "age_s": age, "held": held}
    for pid in filter(str.isdigit, os.listdir(proc) if found else ()):
        folder = "%s/%s/fd/" % (proc, pid)
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # it has exited, or is another user's
        for name in names:
            try:
                lock = found.get(os.readlink(folder + name))
            except OSError:
                continue
            if lock is not None:
                lock["held"] = True
    return [lock for path, lock in found.items() if os.path.exists(path)]
