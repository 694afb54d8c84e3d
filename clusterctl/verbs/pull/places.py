"""Where a pulled path is on the nodes, and where it goes here."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Sequence
from pathlib import Path

from clusterctl.checks.storage.run_paths import in_workdir, job_path
from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.sync.source import PULLED

DEFAULT = "pulled"
"""The folder here, in that of the project."""
MARK = os.fsdecode(PULLED)
"""In a synced folder: what is in it is no code, so `sync` leaves it alone."""


def local_names(cluster: Cluster, words: Sequence[str]) -> dict[str, str]:
    """Return where each path goes below the folder here: as below workdir, else by its name.

    Raises:
        UsageError: a path is none, or two would go to the same place.
    """
    taken: dict[str, str] = {}
    for word in words:
        name = _local_name(cluster.nodes, word) if word and "\0" not in word else ""
        if name in {"", ".", ".."}:
            raise UsageError(f"PATH: expected a file or folder on the nodes, found {word!r}")
        if name in taken.values():
            other = next(known for known, place in taken.items() if place == name)
            message = f"{other} and {word} would both become {name}"
            raise UsageError(message, hint=f"clusterctl pull {shlex.quote(word)} --to other")
        taken[word] = name
    return taken


def _local_name(nodes: Sequence[Node], word: str) -> str:
    for node in nodes:
        path = job_path(node, word)
        if path.startswith("/") and (relative := in_workdir(node, path)):
            return relative
    return posixpath.basename(posixpath.normpath(job_path(nodes[0], word)).rstrip("/"))


def make_folder(path: Path) -> None:
    """Make the folder that gets what is pulled; a new one is kept out of git and of `sync`.

    Raises:
        ClusterError: it cannot be made.
    """
    if path.is_dir():
        return
    try:
        mark = path / MARK
        mark.parent.mkdir(parents=True)
        mark.touch()
        (path / ".gitignore").write_text("*\n")
    except OSError as error:
        message = f"--to {path}: expected a folder to write to, found: {error.strerror}"
        raise ClusterError(message, hint="--to DIR") from error
