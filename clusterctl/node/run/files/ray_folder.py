"""Where the Ray of a run keeps its files on a node: in the run's folder, under a short name.

Ray puts sockets into this folder, and the path of a socket has at most 107 bytes. So Ray gets a
short link to it, in a private folder that no other user can create first or change. The files
themselves, its logs among them, stay with the run.
"""

from __future__ import annotations

import contextlib
import os
import stat

from clusterctl.node.file_io import list_folder

PREFIX = "clusterctl-ray-"
NAME = "r"
KEPT = "logs"
"""What remains of a session; the rest is sockets, unpacked code and spilled objects."""


def make(run_folder: str) -> str:
    """Make the folder and its short name, and return that; OSError if one cannot be made."""
    import tempfile  # noqa: PLC0415  (start-up counts)

    folder = os.path.join(run_folder, "ray")
    os.makedirs(folder, 0o700, exist_ok=True)  # of an earlier attempt
    private = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    os.symlink(private, _private(run_folder))
    short = os.path.join(private, NAME)
    os.symlink(folder, short)
    return short


def _private(run_folder: str) -> str:
    """Return the link that says where the private folder is."""
    return os.path.join(run_folder, "ray-short")


def keep_fresh(run_folder: str) -> None:
    """Let no cleaner of /tmp take the short name for old."""
    with contextlib.suppress(OSError):
        private = _own_private(run_folder)
        os.utime(os.path.join(private, NAME), follow_symlinks=False)
        os.utime(private)


def _own_private(run_folder: str) -> str:
    """Return the private folder; raise OSError if there is none, or it is not ours."""
    private = os.readlink(_private(run_folder))
    seen = os.lstat(private)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise PermissionError(private)
    return private


def remove_short_name(run_folder: str) -> None:
    """Remove the short name, which a run that was killed leaves too."""
    with contextlib.suppress(OSError):
        private = _own_private(run_folder)
        if os.path.basename(private).startswith(PREFIX):
            os.unlink(os.path.join(private, NAME))
            os.rmdir(private)
            os.unlink(_private(run_folder))


def clean(run_folder: str) -> None:
    """Remove what no one needs after the run: the short name, and all but Ray's logs."""
    import shutil  # noqa: PLC0415  (start-up counts)

    remove_short_name(run_folder)
    folder = os.path.join(run_folder, "ray")
    for session in list_folder(folder):
        if os.path.islink(os.path.join(folder, session)):  # the newest, by the short name
            os.unlink(os.path.join(folder, session))
        for name in list_folder(os.path.join(folder, session)):
            if name != KEPT:
                path = os.path.join(folder, session, name)
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(path)
