"""Where the Ray of a run keeps its files on a node: in the run's folder, under a short name.

Ray puts sockets into this folder, and the path of a socket has at most 107 bytes. So Ray gets a
short link to it. The files themselves, its logs among them, stay with the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil

from clusterctl.node.file_io import list_folder

SHORT = "/tmp/clusterctl-ray-%s"  # noqa: S108  (a link to a folder of ours; nobody can replace it)
KEPT = "logs"
"""What remains of a session; the rest is sockets, unpacked code and spilled objects."""


def make(run_folder: str) -> str:
    """Make the folder and its short name, and return that.

    Raises:
        OSError: one of them cannot be made.
    """
    folder = os.path.join(run_folder, "ray")
    os.mkdir(folder, 0o700)
    os.symlink(folder, short_name(run_folder))
    return short_name(run_folder)


def short_name(run_folder: str) -> str:
    """Return the folder's short name, whether it exists or not."""
    return SHORT % hashlib.sha256(os.fsencode(run_folder)).hexdigest()[:10]


def clean(run_folder: str) -> None:
    """Remove what no one needs after the run: the short name, and all but Ray's logs."""
    folder = os.path.join(run_folder, "ray")
    with contextlib.suppress(OSError):
        if os.readlink(short_name(run_folder)) == folder:
            os.unlink(short_name(run_folder))
    for session in list_folder(folder):
        for name in list_folder(os.path.join(folder, session)):
            if name != KEPT:
                path = os.path.join(folder, session, name)
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(path)
