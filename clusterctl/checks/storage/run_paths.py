"""The paths that a run uses on each node, and the shared path that each is on."""

import posixpath
import re
from typing import Literal

from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.plan.command.calls import in_code
from clusterctl.values import dataclass

Role = Literal["shared", "workdir", "checkpoints", "needs", "command", "state", "cache"]

CACHES = (
    "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "UNSLOTH_COMPILE_LOCATION",
)  # fmt: skip
"""Variables that name a folder in which each node compiles, or keeps temporary files."""

DEFAULT_STATE = "/var/tmp/clusterctl-UID"  # noqa: S108  (only read)
"""Where the folders of runs are, with their logs, if the inventory sets no `state:`.

The node knows its UID. The folder itself counts: it may be a mount, or have a quota of its own.
"""

_WRITES = re.compile(r"out|save|log|ckpt|checkpoint|result|profile|trace|cache|tmp|temp")
"""In an option's name: its path is written to, often by one node only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPath:
    """One path and its purpose."""

    path: str
    role: Role


def run_paths(cluster: Cluster, node: Node) -> tuple[RunPath, ...]:
    """Return the node's paths; relative ones are in workdir."""
    job = cluster.job
    found = [RunPath(path=path, role="shared") for path in cluster.shared]
    if node.workdir:
        found.append(RunPath(path=node.workdir, role="workdir"))
    if job.checkpoints:
        found.append(RunPath(path=job_path(node, job.checkpoints), role="checkpoints"))
    found.append(RunPath(path=node.state or DEFAULT_STATE, role="state"))
    found.extend(RunPath(path=job_path(node, need), role="needs") for need in job.needs)
    found.extend(RunPath(path=path, role="command") for path in command_paths(cluster, node))
    found.extend(RunPath(path=path, role="cache") for path in cache_folders(cluster).values())
    return tuple(found)


def command_paths(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """Return the absolute paths in the job's command that the program seems to read.

    Not those in workdir, which the sync brings, nor those of options such as `--output-dir`.
    In a container a path means another file: then there are none.
    """
    if cluster.job.wrap:
        return ()
    known = {node.workdir, cluster.job.checkpoints, *cluster.job.needs} - {None}
    folders = [posixpath.normpath(job_path(node, str(path))) for path in known]
    option, found = "", []
    for word in cluster.job.command:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            name, value = option, word
        option = name if word.startswith("-") and not equals else ""
        path = posixpath.normpath(value) if value.startswith("/") else ""
        if not path or _WRITES.search(name.lower()):
            continue
        if not any(path == folder or path.startswith(folder + "/") for folder in folders):
            found.append(path)
    return tuple(dict.fromkeys(found))


def cache_folders(cluster: Cluster) -> dict[str, str]:
    """Return the folders that variables of `job.env` name, by variable; absolute ones.

    In a container a path means another folder: then there are none.
    """
    env = () if cluster.job.wrap else cluster.job.env
    return {name: path for name, path in env if name in CACHES and path.startswith("/")}


def build_locks(cluster: Cluster) -> tuple[str, ...]:
    """Return patterns of the locks of torch's extension builds.

    In a container a path means another file: then there are none.
    """
    if cluster.job.wrap:
        return ()
    env = dict(cluster.job.env)
    own = env.get("TORCH_EXTENSIONS_DIR", "")
    cache = env.get("XDG_CACHE_HOME", "~/.cache")
    pattern = f"{own}/*/lock" if own else f"{cache}/torch_extensions/*/*/lock"
    return (pattern,) if pattern.startswith(("/", "~/")) else ()


def job_path(node: Node, path: str) -> str:
    """Return a path of the job, relative to its workdir; `~` is the home on the node."""
    if path.startswith("~"):
        return path
    return posixpath.normpath(posixpath.join(node.workdir or "~", path))


def in_workdir(node: Node, path: str) -> str:
    """Return a path below workdir, relative to it: the sync brings it; empty: it is elsewhere."""
    if not node.workdir or path.startswith("~"):
        return ""
    return in_code(job_path(node, path), (node.workdir,)) or ""


def share_of(cluster: Cluster, path: str) -> str | None:
    """Return the innermost shared path that holds this one; None for a local path."""
    normal = posixpath.normpath(path)
    shares = [
        share
        for share in cluster.shared
        if normal == posixpath.normpath(share)
        or normal.startswith(posixpath.normpath(share).rstrip("/") + "/")
    ]
    return max(shares, key=len, default=None)
