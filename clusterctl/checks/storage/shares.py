"""Finds the shared paths that a node lacks, from token files and mounts.

A path on a share that a node lacks is missing there, too. Checks of such paths ask here first, so
that one cause gives one finding.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, skip
from clusterctl.checks.others import most_frequent
from clusterctl.checks.registry import Facts
from clusterctl.checks.storage.run_paths import share_of
from clusterctl.checks.wording import counted
from clusterctl.facts.network.pairwise import TokenSeen
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.values import dataclass

REFUSED = {
    "Permission denied": "is in a folder that this user may not enter",
    "Not a directory": "is below a file, not below a folder",
    "Too many levels of symbolic links": "is below a link that leads in a circle",
}
"""By the system's error: why a path cannot be read, on a filesystem that answers."""
STALE = {
    "Stale file handle": "is a stale NFS handle: what the server exported is not there any more",
    "Transport endpoint is not connected": "has lost its FUSE program",
    "Host is down": "has lost its file server",
}
"""By the system's error: what has become of a mount that must be mounted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingShares:
    """Which share is missing on which node: the cause of any fault of a path on it."""

    cluster: Cluster
    findings: tuple[Finding, ...]
    """One for each node and each share that it lacks."""
    pairs: frozenset[tuple[str, str]]
    """Each node and the share that it lacks."""

    @classmethod
    def of(cls, facts: Facts, cluster: Cluster) -> MissingShares:
        """Compare the nodes that answered."""
        nodes = [node for node in facts.values() if node.answered]
        missing = [
            (found, share) for share in cluster.shared for found in _missing(share, nodes, cluster)
        ]
        return cls(
            cluster=cluster,
            findings=tuple(found for found, _ in missing),
            pairs=frozenset((node, share) for found, share in missing for node in found.nodes),
        )

    def explains(self, node: str, path: str) -> bool:
        """Tell whether the path is on a share that this node lacks."""
        share = share_of(self.cluster, path)
        return share is not None and (node, share) in self.pairs


def no_answer(path: PathFacts) -> str:
    """Return what is wrong with a path that cannot be looked up, after its name."""
    if not path.problem or path.problem.startswith("no answer"):
        return "does not answer"
    return {**REFUSED, **STALE}.get(path.problem, "cannot be read")


def remount(mount: str) -> str:
    """Return the command that mounts a filesystem again."""
    named = shlex.quote(mount)
    return f"sudo umount -f -l {named} && sudo mount {named} (on the node)"


def skip_missing(node: str, path: str) -> Finding:
    """Return the skip of a path that is missing because its share is."""
    return skip(node, f"{path} is on a share that this node lacks")


def tokens_of(node: NodeFacts, share: str) -> tuple[TokenSeen, ...]:
    """Return the token files of the other nodes that a node looked for on a share."""
    return tuple(t for t in node.met.tokens if t.path == share)


def groups(share: str, nodes: list[NodeFacts]) -> list[set[str]]:
    """Return the nodes that see each other's tokens, the largest group first.

    One direction is enough, and so is the same export of a file server: a token may be late.
    """
    leader = {node.node: node.node for node in nodes}

    def lead(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    exports: dict[str, str] = {}
    for node in nodes:
        seen = [t.writer for t in tokens_of(node, share) if t.seen and t.writer in leader]
        path = node.path(share)
        if path is not None and ":" in path.source:
            seen.append(exports.setdefault(path.source, node.node))
        for other in seen:
            leader[lead(other)] = lead(node.node)
    found: dict[str, set[str]] = {}
    for name in leader:
        found.setdefault(lead(name), set()).add(name)
    order = {node.node: index for index, node in enumerate(nodes)}
    return sorted(
        found.values(), key=lambda group: (-len(group), min(order.get(n, 0) for n in group))
    )


def _missing(share: str, nodes: list[NodeFacts], cluster: Cluster) -> Iterator[Finding]:
    present = []
    for node in nodes:
        path = node.path(share)
        if path is None:
            continue
        absence = _absence(path)
        if absence is None:
            present.append(node)
            continue
        message, found = absence
        named = shlex.quote(share)
        restart = f"restart its file server; then: sudo umount -l {named} && sudo mount {named}"
        yield fail(
            node.node,
            f"{share} {message}",
            wanted=f"the folder {share}, one filesystem for all nodes",
            found=found,
            remedy=f"sudo mount {named} (on the node)"
            if path.exists is False
            else remount(share)
            if path.problem in STALE
            else restart,
        )
    tried = [node for node in present if any(t.seen is not None for t in tokens_of(node, share))]
    if len(tried) < 2:  # noqa: PLR2004  (there is nothing to compare)
        return
    usual, *others = groups(share, tried)
    if len(others) == 1 and len(others[0]) == len(usual) and cluster.master.name in others[0]:
        usual, others = others[0], [usual]
    reference = _usual_mount(share, [node for node in tried if node.node in usual])
    for node in tried:
        path = node.path(share)
        if node.node not in usual and path is not None:
            yield _not_shared(node.node, path, reference, len(usual))


def _absence(path: PathFacts) -> tuple[str, str] | None:
    """Return why a path is not a usable folder; None if it is one."""
    if path.exists is None:
        return no_answer(path), path.problem or "no answer"
    if not path.exists:
        return "does not exist", "no such folder"
    if path.folder is False:
        return "is not a folder", "a file"
    return None


def _usual_mount(share: str, nodes: list[NodeFacts]) -> PathFacts | None:
    paths = [path for node in nodes if (path := node.path(share)) is not None]
    usual = most_frequent((p.mount, p.filesystem) for p in paths)
    return next((p for p in paths if (p.mount, p.filesystem) == usual), None)


def _not_shared(node: str, path: PathFacts, usual: PathFacts | None, count: int) -> Finding:
    """Return the finding of a path that is on another filesystem than on the other nodes."""
    unmounted = usual is not None and len(path.mount) < len(usual.mount)
    if unmounted:
        message = f"{path.path} is not mounted: it is a plain folder on {path.mount}"
    else:
        message = f"{path.path} is on another filesystem than on the other nodes"
    named = shlex.quote(path.path)
    where = f"as on {counted(count, 'other node')}"
    return fail(
        node,
        message,
        wanted=f"{_name(usual)}, {where}" if usual is not None else where,
        found=_name(path),
        remedy=f"sudo mount {named}"
        if unmounted
        else f"findmnt -T {named} (on the node); mount the filesystem of the other nodes",
    )


def _name(path: PathFacts) -> str:
    return f"{path.source} ({path.filesystem}) on {path.mount}"
