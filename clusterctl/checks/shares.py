"""What is wrong with the shared paths, told from tokens and mounts, as one value for all checks.

A path that lies on a share which is missing on a node is missing there too; the checks of such
paths ask here first, so that one cause gives one finding.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterctl.checks.finding import Finding
from clusterctl.checks.places import share_of
from clusterctl.checks.wording import counted
from clusterctl.facts.nodefacts import NodeFacts, PathFacts, TokenSeen
from clusterctl.inventory.cluster import Cluster

Facts = Mapping[str, NodeFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A share that one node does not have."""

    node: str
    share: str
    message: str
    wanted: str
    found: str
    remedy: str


def broken_shares(facts: Facts, cluster: Cluster) -> tuple[Broken, ...]:
    """Return each share that a node lacks, with how that shows."""
    nodes = [node for node in facts.values() if node.answered]
    return tuple(b for share in cluster.shared for b in _broken(share, nodes, cluster))


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Which share is missing on which node: the cause of whatever is wrong below it."""

    cluster: Cluster
    pairs: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, facts: Facts, cluster: Cluster) -> Missing:
        """Look once, for all paths."""
        broken = broken_shares(facts, cluster)
        return cls(cluster=cluster, pairs=frozenset((b.node, b.share) for b in broken))

    def explains(self, node: str, path: str) -> bool:
        """Whether the path lies on a share that this node lacks."""
        share = share_of(self.cluster, path)
        return share is not None and (node, share) in self.pairs


def explained(check: str, node: str, path: str) -> Finding:
    """Return what a check says of a path that is missing with its share: nothing of its own."""
    message = f"{path} lies on a share that is missing there"
    return Finding(check=check, status="skip", nodes=(node,), message=message)


def tokens_of(node: NodeFacts, share: str) -> tuple[TokenSeen, ...]:
    """Return what a node saw of the others' tokens on a share."""
    return tuple(t for t in (node.between.tokens if node.between else ()) if t.path == share)


def groups(share: str, nodes: list[NodeFacts]) -> list[set[str]]:
    """Return the nodes that see each other's tokens, the largest group first, then the earliest.

    Sight in one direction is enough, and so is the same export of a file server: what differs
    then is the delay, not the filesystem.
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


def _broken(share: str, nodes: list[NodeFacts], cluster: Cluster) -> Iterator[Broken]:
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
        yield Broken(
            node=node.node,
            share=share,
            message=f"{share} {message}",
            wanted=f"the folder {share}, one filesystem for all nodes",
            found=found,
            remedy=f"sudo mount {named} (on the node)"
            if path.exists is False
            else f"its file server hangs; then: sudo umount -l {named} && sudo mount {named}",
        )
    tried = [node for node in present if any(t.seen is not None for t in tokens_of(node, share))]
    if len(tried) < 2:  # noqa: PLR2004  (nobody to compare with)
        return
    usual, *others = groups(share, tried)
    reference = _usual_mount(share, [node for node in tried if node.node in usual])
    master = cluster.master.name
    if len(others) == 1 and len(others[0]) == len(usual) and master in others[0]:
        usual, others = others[0], [usual]
        reference = _usual_mount(share, [node for node in tried if node.node in usual])
    lost = set().union(*others) if others else set()
    for node in tried:
        path = node.path(share)
        if node.node in lost and path is not None:
            yield _elsewhere(node.node, path, reference, len(usual))


def _absence(path: PathFacts) -> tuple[str, str] | None:
    """Return how a path is not a folder in sight, None where it is one."""
    if path.exists is None:
        return "does not answer", path.problem or "no answer"
    if not path.exists:
        return "is not there", "no such folder"
    if path.folder is False:
        return "is not a folder", "a file"
    return None


def _usual_mount(share: str, nodes: list[NodeFacts]) -> PathFacts | None:
    paths = [path for node in nodes if (path := node.path(share)) is not None]
    if not paths:
        return None
    usual = Counter((p.mount, p.filesystem) for p in paths).most_common(1)[0][0]
    return next(p for p in paths if (p.mount, p.filesystem) == usual)


def _elsewhere(node: str, path: PathFacts, usual: PathFacts | None, count: int) -> Broken:
    """Say what lies under the path instead: nothing of its own, or another filesystem."""
    unmounted = usual is not None and len(path.mount) < len(usual.mount)
    if unmounted:
        message = f"{path.path} is not mounted: it is a plain folder of {path.mount}"
    else:
        message = f"{path.path} is another filesystem than on the other nodes"
    named = shlex.quote(path.path)
    where = f"as on {counted(count, 'other node')}"
    return Broken(
        node=node,
        share=path.path,
        message=message,
        wanted=f"{_name(usual)}, {where}" if usual is not None else where,
        found=_name(path),
        remedy=f"sudo mount {named}"
        if unmounted
        else f"findmnt -T {named} (on the node), and mount what the others have",
    )


def _name(path: PathFacts) -> str:
    return f"{path.source} ({path.filesystem}) on {path.mount}"
