"""What all nodes' words about one checkpoint amount to, by the inventory of the cluster. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeAlias

from clusterctl.inventory.cluster import Cluster
from clusterctl.model.checkpoint import NodeCheckpoint
from clusterctl.node.checkpoints import copies
from clusterctl.node.checkpoints.copies import Copy
from clusterctl.verbs.runs.history import History

Copies: TypeAlias = Mapping[str, NodeCheckpoint]
"""Node name → what it says of one checkpoint."""
Candidates: TypeAlias = Mapping[str, Sequence[NodeCheckpoint]]
"""Node name → what it says of each checkpoint that it has."""


def split_by_history(
    found: Candidates, knows: Mapping[str, bool], cluster: Cluster, history: History
) -> tuple[list[tuple[str, Copies]], list[tuple[str, str]]]:
    """Divide candidates into those of the history and others, each with why it is not.

    Where the files are shared, the first node that had the run judges: the run began there before
    anywhere else, and its clock most probably stamped them. Elsewhere every node judges its own.
    """
    runs = {run.run for run in history.runs}
    others: dict[str, str] = {}
    foreign: set[tuple[str, str]] = set()
    ordered = newest_first(found)
    orders = {node: [seen[node] for _, seen in ordered if node in seen] for node in found}
    for name, seen in ordered:
        judges = {node: one for node, one in seen.items() if knows.get(node)} or dict(seen)
        if is_shared(seen, cluster):
            judges = dict([next(iter(judges.items()))])
        objections = {n: history.objection(one, orders[n]) for n, one in judges.items()}
        objected = {node: objection for node, objection in objections.items() if objection}
        own = {seen[node].hash for node in objections.keys() - objected.keys()}
        by_these = {one.hash for one in judges.values() if one.run in runs} & own
        if by_these:  # what a run was resumed from may be another run's, but not here
            foreign |= {(node, name) for node, one in judges.items() if one.hash not in by_these}
        if objected and (not own or any(seen[node].hash in own for node in objected)):
            others[name] = next(iter(objected.values()))
        else:  # on its own disk, a node has another one of the same name
            foreign |= {(node, name) for node in objected}

    def kept(*, ours: bool) -> list[tuple[str, Copies]]:
        part = {
            node: [
                one
                for one in candidates
                if (one.name not in others) == ours and not (ours and (node, one.name) in foreign)
            ]
            for node, candidates in found.items()
        }
        return newest_first(part)

    return kept(ours=True), [(name, others[name]) for name, _ in kept(ours=False)]


def newest_first(found: Candidates) -> list[tuple[str, Copies]]:
    """Return the checkpoints by name with what each node says of it, the newest first."""
    kept = {(node, one.name): one for node, candidates in found.items() for one in candidates}
    told = {node: [Copy.of(one) for one in candidates] for node, candidates in found.items()}
    return [
        (name, {node: kept[node, name] for node in seen})
        for name, seen in copies.newest_first(told)
    ]


def as_copies(seen: Copies) -> dict[str, Copy]:
    """Return what the rules for copies need of it."""
    return {node: Copy.of(one) for node, one in seen.items()}


def is_shared(seen: Copies, cluster: Cluster) -> bool:
    """Tell whether all nodes see the very same files: no link may lead off the shared storage."""
    places = {place for one in seen.values() for place in one.real or [one.path]}
    return all(
        any(PurePosixPath(place).is_relative_to(folder) for folder in cluster.shared)
        for place in places
    )


def one_of_each(found: Candidates) -> Copies:
    """Return what each node says of the one checkpoint that was asked for."""
    return {node: candidates[0] for node, candidates in found.items()}


def require_fit(seen: Copies, cluster: Cluster) -> list[str]:
    """Return doubts; raise Unfit for what is absent, incomplete or different on some node."""
    return copies.require_fit(as_copies(seen), [node.name for node in cluster.nodes])


def path_for_job(seen: Copies, cluster: Cluster) -> str:
    """Return the path of it on every node, absolute if all have the same; raise Unfit for none."""
    workdirs = {node.name: node.workdir or "" for node in cluster.nodes}
    return copies.path_for_job({node: one.path for node, one in seen.items()}, workdirs)
