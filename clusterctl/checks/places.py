"""The paths that a run depends on, per node, and which shared filesystem each lies on."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Literal

from clusterctl.inventory.cluster import Cluster, Node

Role = Literal["shared", "workdir", "checkpoints", "needs", "state"]

DEFAULT_STATE = "/var/tmp"  # noqa: S108  (looked at, not written to)
"""What holds the folders of runs, and so their logs, where the inventory sets no `state:`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One path and what it is for."""

    path: str
    role: Role


def places(cluster: Cluster, node: Node) -> tuple[Place, ...]:
    """Return the node's paths; what the inventory gives relative lies in workdir."""
    job = cluster.job
    found = [Place(path=path, role="shared") for path in cluster.shared]
    if node.workdir:
        found.append(Place(path=node.workdir, role="workdir"))
    if job.checkpoints:
        found.append(Place(path=inside(node, job.checkpoints), role="checkpoints"))
    found.append(Place(path=node.state or DEFAULT_STATE, role="state"))
    found.extend(Place(path=inside(node, need), role="needs") for need in job.needs)
    return tuple(found)


def inside(node: Node, path: str) -> str:
    """Return a path of the job as seen from its workdir; `~` is the node's own home."""
    if path.startswith("~"):
        return path
    return posixpath.normpath(posixpath.join(node.workdir or "~", path))


def share_of(cluster: Cluster, path: str) -> str | None:
    """Return the shared path that this one lies on, the innermost; None for a local path."""
    normal = posixpath.normpath(path)
    shares = [
        share
        for share in cluster.shared
        if normal == posixpath.normpath(share)
        or normal.startswith(posixpath.normpath(share).rstrip("/") + "/")
    ]
    return max(shares, key=len, default=None)
