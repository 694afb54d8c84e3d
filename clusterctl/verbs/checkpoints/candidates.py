"""What all nodes' words about one checkpoint amount to: whole and the same, or why not. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from clusterctl.inventory.cluster import Cluster
from clusterctl.model.checkpoint import NodeCheckpoint, RankFiles
from clusterctl.verbs.runs.history import History

SAVE_SECONDS = 900.0
"""The ranks' files of one save are all written within this long, clock skew included."""
Copies: TypeAlias = Mapping[str, NodeCheckpoint]
"""Node name → what it says of one checkpoint."""
Candidates: TypeAlias = Mapping[str, Sequence[NodeCheckpoint]]
"""Node name → what it says of each checkpoint that it has."""


class Unfit(Exception):  # noqa: N818  (a verdict, which the caller handles)
    """A candidate is not complete, or not the same everywhere; `str()` says where and why."""

    def __init__(self, why: str, hint: str = "") -> None:
        """Keep why, and what to type next if that is known."""
        super().__init__(why)
        self.hint = hint


def newest_first(found: Candidates) -> list[tuple[str, Copies]]:
    """Return the checkpoints by name with what each node says of it, the newest first.

    Newest is the highest step. What has none comes after that, by epoch, date and time of writing.
    """
    seen: dict[str, dict[str, NodeCheckpoint]] = {}
    for node, candidates in found.items():
        for one in candidates:
            if one.name:
                seen.setdefault(one.name, {})[node] = one
    every = [one for nodes in seen.values() for one in nodes.values()]
    stepped = [one for one in every if one.step is not None]
    # Scripts that count steps from 0 in each epoch store both.
    epochs = all(one.epoch is not None for one in stepped)

    def age(one: NodeCheckpoint) -> tuple[Any, ...]:
        step, epoch, date = (-1 if n is None else n for n in (one.step, one.epoch, one.date))
        return (step >= 0, epoch if epochs and step >= 0 else 0, step, epoch, date, one.time)

    ages = {name: max(map(age, nodes.values())) for name, nodes in seen.items()}
    return [(name, seen[name]) for name in sorted(seen, key=ages.__getitem__, reverse=True)]


def split_by_history(
    found: Candidates, knows: Mapping[str, bool], cluster: Cluster, history: History
) -> tuple[list[tuple[str, Copies]], list[tuple[str, str]]]:
    """Divide candidates into those of the history and others, each with why it is not.

    Where the files are shared, the first node that had the run judges: the run began there before
    anywhere else, and its clock most probably stamped them. Elsewhere every node judges its own.
    """
    others: dict[str, str] = {}
    for name, seen in newest_first(found):
        judges = {node: one for node, one in seen.items() if knows.get(node)} or dict(seen)
        if is_shared(seen, cluster):
            judges = dict([next(iter(judges.items()))])
        objections = [history.objection(one) for one in judges.values()]
        if objection := next(filter(None, objections), ""):
            others[name] = objection

    def ordered(*, ours: bool) -> list[tuple[str, Copies]]:
        kept = {
            node: [one for one in candidates if (one.name not in others) == ours]
            for node, candidates in found.items()
        }
        return newest_first(kept)

    return ordered(ours=True), [(name, others[name]) for name, _ in ordered(ours=False)]


def is_shared(seen: Copies, cluster: Cluster) -> bool:
    """Tell whether all nodes see the very same files: no link may lead off the shared storage."""
    places = {place for one in seen.values() for place in one.real or [one.path]}
    return all(
        any(PurePosixPath(place).is_relative_to(folder) for folder in cluster.shared)
        for place in places
    )


def require_fit(seen: Copies, cluster: Cluster) -> list[str]:
    """Return doubts; raise Unfit for what is absent, incomplete or different on some node."""
    absent = [node.name for node in cluster.nodes if node.name not in seen]
    if absent:
        raise Unfit(f"it is missing on {', '.join(absent)}", hint=_copy_hint(seen))
    if any(one.part and not one.part.whole for one in seen.values()):
        return _require_all_ranks(seen)
    require_complete(seen)
    if len({one.hash for one in seen.values()}) > 1:
        raise Unfit(f"it is not the same on all nodes ({_difference(seen)})")
    return _about_size([one.part for one in seen.values() if one.part])


def require_complete(seen: Copies) -> None:
    """Raise Unfit for what is not complete on some node."""
    broken: dict[str, list[str]] = {}
    for node, one in seen.items():
        if not one.complete:
            broken.setdefault(one.why, []).append(node)
    if broken:
        whys = (f"{why} (on {', '.join(sorted(nodes))})" for why, nodes in broken.items())
        absent = any(not one.path for one in seen.values())
        hint = _copy_hint(seen) if absent else ""
        raise Unfit("it is not complete: " + "; ".join(whys), hint=hint)


def _copy_hint(seen: Copies) -> str:
    """Return how to copy it from a node where it is complete; empty without one."""
    for node, one in seen.items():
        if one.complete:
            words = ["clusterctl", "push", one.path, "--from", node]
            return f"copy it to all nodes: {shlex.join(words)}"
    return ""


def _difference(seen: Copies) -> str:
    """Name the first file that differs, else the steps."""
    steps = {one.step for one in seen.values()}
    names = sorted({name for one in seen.values() for name in one.files or ()})
    for name in names if len(steps) == 1 else ():
        digests = {node: (one.files or {}).get(name) for node, one in seen.items()}
        if len(set(digests.values())) > 1:
            lacking = [node for node, digest in digests.items() if digest is None]
            if lacking:
                return f"{name} is missing on {', '.join(lacking)}"
            return f"{name} differs: " + ", ".join(
                f"{n}: {str(d)[:16]}" for n, d in digests.items()
            )
    return ", ".join(f"{node}: step {one.step}" for node, one in seen.items())


def _require_all_ranks(seen: Copies) -> list[str]:
    """Raise Unfit unless the ranks' files of all nodes together are complete and of one save."""
    broken = [
        f"{one.why} (on {node})" for node, one in seen.items() if not one.complete and not one.part
    ]
    if broken:
        raise Unfit("it is not complete: " + "; ".join(broken))
    parts = [one.part for one in seen.values() if one.part]
    found = {one.step for one in seen.values() if one.step is not None}
    found |= {step for part in parts for step in part.steps}
    if len(found) > 1:
        steps = ", ".join(map(str, sorted(found)))
        raise Unfit(f"it is not the same on all nodes: of steps {steps}")
    written = [moment for part in parts for moment in part.saved]
    by_all = all(part.steps for part in parts)
    if (span := max(written) - min(written)) > SAVE_SECONDS and not by_all:
        raise Unfit(f"two saves are mixed: the ranks' files were written {span:.0f} s apart")
    held = {rank for part in parts for rank in part.ranks}
    sizes = [part.world_size for part in parts if part.world_size]
    missing = sorted(set(range(max(sizes, default=max(held) + 1))) - held)
    if missing:
        saved = f"it was saved by {max(sizes)} ranks, and " if sizes else ""
        raise Unfit(f"it is not complete: {saved}the file of rank {missing[0]} is on no node")
    if not any(part.metadata for part in parts):
        raise Unfit("it is not complete: metadata.json, which rank 0 writes, is on no node")
    return _about_size(parts)


def _about_size(parts: Sequence[RankFiles]) -> list[str]:
    """Doubt a number of ranks that nothing says."""
    if not parts or any(part.world_size for part in parts):
        return []
    count = max(rank for part in parts for rank in part.ranks) + 1
    supposed = next((part.supposed for part in parts if part.supposed), None)
    text = f"nothing says how many ranks wrote it: the files of {count} are there"
    return [f"{text}, the run had {supposed}" if supposed and supposed != count else text]


def require_own_ranks(seen: Copies, ranks: Mapping[str, Sequence[int]]) -> list[str]:
    """Refuse ranks' files that are on other nodes than those that will load them.

    Args:
        seen: what the nodes say.
        ranks: node → the ranks that it will run; empty: not known.

    Raises:
        Unfit: a node lacks a file of its own ranks.
    """
    parts = {node: one.part.ranks for node, one in seen.items() if one.part}
    if not parts or all(held == next(iter(parts.values())) for held in parts.values()):
        return []
    if not ranks:
        return ["each node holds the files of some ranks; whether they are its own is not known"]
    for node, wanted in ranks.items():
        lacking = sorted(set(wanted) - set(parts.get(node, ())))
        if lacking:
            where = [other for other, held in parts.items() if lacking[0] in held]
            raise Unfit(
                f"the file of rank {lacking[0]} is on {', '.join(where) or 'no node'},"
                f" and {node} will run rank {lacking[0]}"
            )
    return []


def path_for_job(seen: Copies, cluster: Cluster) -> str:
    """Return the path by which the job finds it on every node, absolute if all have the same.

    Raises:
        Unfit: there is no such path.
    """
    paths = {node: one.path for node, one in seen.items()}
    if len(set(paths.values())) == 1:
        return next(iter(paths.values()))
    workdirs = {node.name: node.workdir or "" for node in cluster.nodes}
    inside = {
        str(PurePosixPath(path).relative_to(workdirs[node]))
        if workdirs.get(node) and PurePosixPath(path).is_relative_to(workdirs[node])
        else ""
        for node, path in paths.items()
    }
    if len(inside) == 1 and (path := inside.pop()):
        return path
    where = ", ".join(f"{node}: {path}" for node, path in paths.items())
    raise Unfit(f"it has no path that is the same on all nodes ({where})")


def one_of_each(found: Candidates) -> Copies:
    """Return what each node says of the one checkpoint that was asked for."""
    return {node: candidates[0] for node, candidates in found.items()}
