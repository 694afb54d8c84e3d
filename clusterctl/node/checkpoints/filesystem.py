"""The filesystem that a folder is on: who else may write there, whose clock stamps its files."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, NamedTuple

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs"}
    | {"vfat", "xfs", "zfs"}
)
"""Filesystems whose files are stamped by this machine's own clock."""
_GRAIN = 0.1
"""Seconds by which a file's time may be off on any system."""


class Mount(NamedTuple):
    """What a folder is on; a type is empty if that cannot be read."""

    type: str = ""
    root: str = "/"
    """The folder of the filesystem that is mounted."""

    @property
    def is_local(self) -> bool:
        """This machine stamps the files."""
        return self.type in _LOCAL

    @property
    def may_be_shared(self) -> bool:
        """Other machines may write there, or other containers: their volumes are bind mounts."""
        return not self.is_local or self.root != "/"


def mount_of(folder: str) -> Mount:
    """Return the mount that a folder is on; mountinfo's fields are in proc_pid_mountinfo(5)."""
    real = os.path.realpath(folder)
    best, found = "", Mount()
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                root, point = (each.replace("\\040", " ") for each in before.split(" ")[3:5])
                inside = point in ("/", real) or real.startswith(point + "/")
                if inside and len(point) >= len(best):
                    best, found = point, Mount(after.split(" ")[0], root)
    except (OSError, ValueError):
        return Mount()
    return found


def clock_skew(folder: str, clock: Callable[[], float] = time.time) -> float:
    """Return how many seconds the clock that stamps files in a folder is ahead of `clock`.

    On a local filesystem that is this machine's own. On others it takes an empty file, removed
    at once; if none can be made the clocks count as equal.
    """
    if clock is time.time and mount_of(folder).is_local:
        return 0.0
    path = os.path.join(folder, ".clusterctl-clock-%d-%d" % (os.getpid(), time.time_ns()))
    try:
        before = clock()
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, b"\n")
            os.fsync(descriptor)
            stamped = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(path)
    except OSError:
        return 0.0
    off_by = clock() - before
    ahead = stamped - before
    # Between the two looks at the clock the file may have got its time whenever.
    return 0.0 if -_GRAIN <= ahead <= off_by + _GRAIN else ahead
