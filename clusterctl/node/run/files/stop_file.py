"""The file by which ranks are asked to end: made once, and never left for the next run to find."""

from __future__ import annotations

import errno
import os
from typing import Optional, Tuple

from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths, default_state_folder, run_folders
from clusterctl.node.run.operations.status import is_alive

LIMIT_SECONDS = 1.0
"""How long the share may take: the KILL that comes after the request must not wait for it."""


def create(workdir: str, name: Optional[str]) -> str:
    """Make the file; return its path if it is new, and so ours to remove."""
    if name is None:
        return ""
    if os.path.isabs(name) or ".." in name.split("/"):
        raise OSError(errno.EPERM, "a stop file must be in workdir")
    path = os.path.join(workdir, name)
    number, new = run_with_timeout(LIMIT_SECONDS, lambda: _create(path))
    if number:
        raise OSError(number, os.strerror(number))
    return path if new else ""


def try_create(workdir: str, name: Optional[str]) -> Tuple[str, str]:
    """Make the file as `create` does; return its path, and why it cannot be made."""
    try:
        return create(workdir, name), ""
    except OSError as error:
        return "", "cannot make %s: %s" % (name, error.strerror or error)


def remove(path: str) -> None:
    """Remove a file that we made, if it is still there and its filesystem answers."""
    try:
        if path:
            run_with_timeout(LIMIT_SECONDS, lambda: os.unlink(path))
    except OSError:
        return


def _create(path: str) -> Tuple[int, bool]:
    """Return the error's number, 0 for none, and whether the file is new."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        if os.path.exists(path):
            return 0, False  # the person's, or another node's on the same filesystem
        return errno.EEXIST, False  # a link to nothing, which no rank sees
    except OSError as error:
        return error.errno or errno.EIO, False
    return 0, True


def remove_stop_file_of(paths: NodePaths) -> None:
    """Remove the file that a dead supervisor made and could not remove."""
    remove(str(read_json(paths.supervisor).get("stop_file", "")))


def remove_stale(job: NodeJob) -> None:
    """Remove what earlier runs' dead supervisors left: it would stop this run at its first step."""
    if not job["stop"].get("file"):
        return
    for paths in run_folders(job.get("state") or default_state_folder(), job["cluster"]):
        if os.path.exists(paths.end) or is_alive(read_json(paths.supervisor)):
            continue  # another run may be on this machine
        if read_json(paths.job):
            remove_stop_file_of(paths)
