"""Files that are on no disk and have no name: for secrets, and for what a child hands back."""

from __future__ import annotations

import os

SHARED_MEMORY = "/dev/shm"  # noqa: S108  (no name stays there)


def anonymous_file(name: str) -> int:
    """Return the descriptor of an empty file that only this process and its children can open.

    Not every Python has `memfd_create`: conda's and others are built for older C libraries.

    Raises:
        OSError: no such file can be made.
    """
    try:
        return os.memfd_create(name)
    except (AttributeError, OSError):
        path = "%s/clusterctl-%d-%s" % (SHARED_MEMORY, os.getpid(), os.urandom(8).hex())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return descriptor
