"""The folder in which this machine keeps what it knows of clusters: runs, and hosts' keys."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "CLUSTERCTL_STATE"
ANOTHER_FOLDER = f"set {VARIABLE} to another folder"
"""What helps where the folder cannot be used."""


def state_folder() -> Path:
    """Return `$CLUSTERCTL_STATE`, else ours in the user's state folder; where a link leads."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(os.path.realpath(given))
    import platformdirs  # noqa: PLC0415  (`clusterctl --help` must be quick)

    return Path(os.path.realpath(platformdirs.user_state_path("clusterctl")))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process changes a file.

    The lock is a file of its own: the other is replaced, and a lock belongs to its inode.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(f"{path}.lock", flags, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
