"""The file by which ranks are asked to end: made once, and never left for the next run to find."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from clusterctl.node.paths import NodePaths, default_root, runs
from clusterctl.node.record import read_json


def make(workdir: str, name: Optional[str]) -> str:
    """Make the file; return its path if it is new, and so ours to remove.

    Raises:
        OSError: it cannot be made.
    """
    if name is None:
        return ""
    path = os.path.join(workdir, name)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return ""  # the person's, or another node's on the same filesystem
    return path


def remove(path: str) -> None:
    """Remove a file that we made, if it is still there."""
    try:
        if path:
            os.unlink(path)
    except OSError:
        return


def remove_left_by(paths: NodePaths) -> None:
    """Remove the file that a dead supervisor made and could not remove."""
    remove(str((read_json(paths.supervisor) or {}).get("stop_file", "")))


def remove_leftovers(job: Dict[str, Any]) -> None:
    """Remove what earlier runs' dead supervisors left: it would stop this run at its first step."""
    if not job["stop"].get("file"):
        return
    for paths in runs(job.get("state") or default_root(), job["cluster"]):
        if not os.path.exists(paths.end) and read_json(paths.job):
            remove_left_by(paths)
