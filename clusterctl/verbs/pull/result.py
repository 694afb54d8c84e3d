"""What a pull was asked for, and what it brought from each node."""

import glob
import os
import posixpath
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from clusterctl.checks.storage.run_paths import in_workdir, job_path
from clusterctl.checks.wording import size_of
from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.sync.source import PULLED
from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA, plain

PullState = Literal["pulled", "unchanged", "same", "absent", "failed", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """What to pull, and to where."""

    paths: tuple[str, ...]
    """Relative ones start at workdir."""
    to: Path
    """The folder here."""
    overwrite: bool = False
    """Replace files there that have other contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePull:
    """What became of one path of one node."""

    node: str
    state: PullState
    """same: another node has the same contents, and was asked; absent: it does not have the path;
    unchanged: it was here already."""
    path: str
    """On the node."""
    to: str = ""
    """Where it is here."""
    bytes: int = 0
    files: int = 0
    received: int = 0
    """Bytes that came over the network."""
    left_out: tuple[str, ...] = ()
    """The first paths in it that are no files, or links to folders outside of it."""
    words: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPull:
    """What became of one path."""

    path: str
    nodes: tuple[NodePull, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """What is here now."""

    schema: int = SCHEMA
    cluster: str
    to: str
    paths: tuple[PathPull, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0; 1 if a path could not be pulled, or no node has it; 3 if only answers are missing."""
        per_path = [{node.state for node in path.nodes} for path in self.paths]
        if any("failed" in states or states == {"absent"} for states in per_path):
            return 1
        return 3 if any("unreachable" in states for states in per_path) else 0

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        document: dict[str, Any] = plain(self)
        return document


DEFAULT = "pulled"
"""The folder here, in that of the project."""
MARK = os.fsdecode(PULLED)
"""In a synced folder: what is in it is no code, so `sync` leaves it alone."""


def local_names(cluster: Cluster, words: Sequence[str]) -> dict[str, str]:
    """Return where each path goes below the folder here: as below workdir, else by its name."""
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
    """Make the folder that gets what is pulled; a new one is kept out of git and of `sync`."""
    if path.name == DEFAULT and path.is_symlink():
        _refuse_link(path)
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


def require_inside(folder: Path, target: Path) -> None:
    """Refuse a target below the folder that a link leads out of it: a project may have links."""
    if not target.resolve().is_relative_to(folder.resolve()):
        _refuse_link(target)


def require_room(folder: Path, target: Path, size: int) -> None:
    """Refuse more than fits, before a node hashes all of it; what is there may be a part of it."""
    partial = f".{glob.escape(target.name[:100])}.*"
    there = target.rglob("*") if target.is_dir() else [target, *target.parent.glob(partial)]
    kept = sum(one.lstat().st_blocks * 512 for one in there if one.is_file())
    free = shutil.disk_usage(folder).free
    if size > free + kept:
        message = f"{target}: {size_of(size)} to write, {size_of(free)} free"
        raise ClusterError(message, hint="put it elsewhere: --to DIR")


def _refuse_link(path: Path) -> None:
    message = f"{path}: expected a folder here, found a link to {path.resolve()}"
    raise ClusterError(message, hint="put it elsewhere: --to DIR")
