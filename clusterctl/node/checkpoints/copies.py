"""What all nodes' words about checkpoints amount to: whole and the same, or why not. Pure.

The controller judges by these rules for `resume`, the master's supervisor for a restart.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.checkpoints.names import is_beside_model, is_of_rank

SAVE_SECONDS = 900.0
"""The ranks' files of one save are all written within this long, clock skew included."""


class Part(NamedTuple):
    """The files of some ranks."""

    ranks: Tuple[int, ...]
    """Whose files they are."""
    metadata: bool
    """With the file of rank 0 that describes all."""
    steps: Tuple[int, ...]
    """Those that the files name."""
    saved: Tuple[float, ...]
    """When they were written."""
    world_size: Optional[int]
    """As the files name it."""
    supposed: Optional[int]
    """As the run had it."""
    whole: bool
    """All ranks' files are here."""


class Copy(NamedTuple):
    """A checkpoint as one node sees it."""

    name: str
    """Of its file or folder; empty: the node does not have it."""
    path: str
    """Where it is; absolute."""
    complete: bool
    """Nothing of it is missing, as far as it was read."""
    why: str
    """Why it is not complete."""
    hash: str
    """Equal where the checkpoint is, as far as it was read."""
    time: float
    """When it was written, by the node's clock."""
    step: Optional[int]
    """The one that it was written at."""
    epoch: Optional[int]
    date: Optional[int]
    """Those that its name has."""
    run: str
    """The run that wrote it; empty: unknown."""
    mixed: str
    """Why it may be of two saves."""
    beside: Tuple[str, ...]
    """The runs that may have written it, if they are several."""
    files: Mapping[str, str]
    """Name → digest."""
    part: Optional[Part]
    """If it has the files of some ranks only."""

    @classmethod
    def of(cls, told: Any) -> Copy:  # noqa: ANN401  (the controller's value has the same fields)
        """Return what the rules need of a node's answer, as the controller has read it."""
        fields = {name: getattr(told, name) for name in cls._fields}
        part = told.part and Part(**{name: getattr(told.part, name) for name in Part._fields})
        return cls(**{**fields, "files": told.files or {}, "part": part})


class Unfit(Exception):  # noqa: N818  (a verdict, which the caller handles)
    """A candidate is not complete, or not the same everywhere; `str()` says where and why."""

    def __init__(self, why: str, hint: str = "") -> None:
        """Keep why, and what to type next if that is known."""
        super().__init__(why)
        self.hint = hint


def newest_first(found: Mapping[str, Sequence[Copy]]) -> List[Tuple[str, Mapping[str, Copy]]]:
    """Return the checkpoints by name with what each node says of it, the newest first.

    Newest is the highest step, or the latest epoch if each has one. What has no step comes after
    that, by epoch, date and time of writing; the part of a rank after the others of its step, and
    an optimizer after its model.
    """
    seen: Dict[str, Dict[str, Copy]] = {}
    for node, candidates in found.items():
        for one in candidates:
            if one.name:
                seen.setdefault(one.name, {})[node] = one
    every = [one for nodes in seen.values() for one in nodes.values()]
    stepped = [one for one in every if one.step is not None]
    # Scripts that count steps from 0 in each epoch store both.
    epochs = all(one.epoch is not None for one in stepped)
    all_epochs = all(one.epoch is not None for one in every)

    def age(one: Copy) -> Tuple[Any, ...]:
        step, epoch, date = (-1 if n is None else n for n in (one.step, one.epoch, one.date))
        first = epoch if all_epochs or (epochs and step >= 0) else 0
        whole = (not is_of_rank(one.name), not is_beside_model(one.name))
        return (all_epochs or step >= 0, first, step, epoch, date, whole, one.time)

    ages = {name: max(map(age, nodes.values())) for name, nodes in seen.items()}
    return [(name, seen[name]) for name in sorted(seen, key=ages.__getitem__, reverse=True)]


def rivals(ordered: Sequence[Tuple[str, Mapping[str, Copy]]], taken: str) -> List[Tuple[str, str]]:
    """Return the complete ones that a user may have meant instead of the one taken, each with why.

    A program may save two files at a step, or count steps from 0 again in its second stage.
    """
    firsts = {name: next(iter(seen.values())) for name, seen in ordered}
    chosen = firsts.pop(taken)
    found = []
    for name, one in firsts.items():
        if chosen.step is None or not one.complete or one.hash == chosen.hash or is_of_rank(name):
            continue
        if one.step is None:
            if one.epoch is None and one.date is None and one.time > chosen.time + 1.0:
                found.append((name, "it was written later, and has no step"))
            continue
        if one.epoch != chosen.epoch:
            continue
        if one.step == chosen.step:
            found.append((name, "it is of the same step"))
        elif one.step < chosen.step and one.time > chosen.time + 1.0:
            found.append((name, "it was written later, at step %d" % one.step))
    return found


def require_fit(seen: Mapping[str, Copy], nodes: Sequence[str]) -> List[str]:
    """Return doubts; raise Unfit for what is absent, incomplete or different on some node."""
    absent = [node for node in nodes if node not in seen]
    if absent:
        raise Unfit("it is missing on %s" % ", ".join(absent), hint=copy_hint(seen))
    if any(one.part and not one.part.whole for one in seen.values()):
        return _require_all_ranks(seen)
    require_complete(seen)
    if len({one.hash for one in seen.values()}) > 1 and not _of_all_ranks(seen):
        hint = copy_hint({node: one for node, one in seen.items() if _has_all(one, seen)})
        raise Unfit("it is not the same on all nodes (%s)" % _difference(seen), hint)
    return _about_size([one.part for one in seen.values() if one.part])


def _of_all_ranks(seen: Mapping[str, Copy]) -> bool:
    """Tell whether nodes have different files because each has those of its own ranks."""
    parts = [one.part for one in seen.values() if one.part]
    sizes = {part.world_size for part in parts}
    written = [moment for part in parts for moment in part.saved]
    held = {rank for part in parts for rank in part.ranks}
    return (
        len(parts) == len(seen)
        and len({one.step for one in seen.values()}) == len(sizes) == 1
        and held == set(range(max(sizes, key=lambda size: size or 0) or 0))
        and max(written) - min(written) <= SAVE_SECONDS
    )


def require_complete(seen: Mapping[str, Copy]) -> None:
    """Raise Unfit for what is not complete on some node."""
    broken: Dict[str, List[str]] = {}
    for node, one in seen.items():
        if not one.complete:
            broken.setdefault(one.why, []).append(node)
    if broken:
        whys = ("%s (on %s)" % (why, ", ".join(sorted(nodes))) for why, nodes in broken.items())
        absent = any(not one.path for one in seen.values())
        hint = copy_hint(seen) if absent else ""
        raise Unfit("it is not complete: " + "; ".join(whys), hint=hint)


def _has_all(one: Copy, seen: Mapping[str, Copy]) -> bool:
    """Tell whether a copy has all that the others have, and one of them lacks something of it."""
    each = [other.files.items() for other in seen.values()]
    return all(one.files.items() >= other for other in each) and any(
        one.files.items() > other for other in each
    )


def copy_hint(seen: Mapping[str, Copy]) -> str:
    """Return how to copy it from a node where it is complete; empty without one."""
    for node, one in seen.items():
        part = one.part and one.part.world_size not in (None, len(one.part.ranks))
        if one.complete and not part and not is_of_rank(one.name):
            words = ["clusterctl", "push", one.path, "--from", node]
            return "copy it to all nodes: " + shlex.join(words)
    return ""


def _difference(seen: Mapping[str, Copy]) -> str:
    """Name the first file that differs, else the steps."""
    steps = {one.step for one in seen.values()}
    names = sorted({name for one in seen.values() for name in one.files})
    for name in names if len(steps) == 1 else ():
        digests = {node: one.files.get(name) for node, one in seen.items()}
        if len(set(digests.values())) > 1:
            lacking = [node for node, digest in digests.items() if digest is None]
            if lacking:
                return "%s is missing on %s" % (name, ", ".join(lacking))
            told = ("%s: %s" % (node, str(digest)[:16]) for node, digest in digests.items())
            return "%s differs: %s" % (name, ", ".join(told))
    return ", ".join("%s: step %s" % (node, one.step) for node, one in seen.items())


def _require_all_ranks(seen: Mapping[str, Copy]) -> List[str]:
    """Raise Unfit unless the ranks' files of all nodes together are complete and of one save."""
    broken = [
        "%s (on %s)" % (one.why, node)
        for node, one in seen.items()
        if not one.complete and not one.part
    ]
    if broken:
        raise Unfit("it is not complete: " + "; ".join(broken))
    parts = [one.part for one in seen.values() if one.part]
    found = {one.step for one in seen.values() if one.step is not None}
    found |= {step for part in parts for step in part.steps}
    if len(found) > 1:
        steps = ", ".join(map(str, sorted(found)))
        raise Unfit("it is not the same on all nodes: of steps %s" % steps)
    written = [moment for part in parts for moment in part.saved]
    by_all = all(part.steps for part in parts)
    span = max(written) - min(written)
    if span > SAVE_SECONDS and not by_all:
        raise Unfit("two saves are mixed: the ranks' files were written %.0f s apart" % span)
    held = {rank for part in parts for rank in part.ranks}
    sizes = [part.world_size for part in parts if part.world_size]
    missing = sorted(set(range(max(sizes, default=max(held) + 1))) - held)
    if missing:
        saved = "it was saved by %d ranks, and " % max(sizes) if sizes else ""
        raise Unfit("it is not complete: %sthe file of rank %d is on no node" % (saved, missing[0]))
    if not any(part.metadata for part in parts):
        raise Unfit("it is not complete: metadata.json, which rank 0 writes, is on no node")
    return _about_size(parts)


def _about_size(parts: Sequence[Part]) -> List[str]:
    """Doubt a number of ranks that nothing says."""
    if not parts or any(part.world_size for part in parts):
        return []
    count = max(rank for part in parts for rank in part.ranks) + 1
    supposed = next((part.supposed for part in parts if part.supposed), None)
    if supposed == count:
        return []
    text = "nothing says how many ranks wrote it: the files of %d are there" % count
    return ["%s, the run had %s" % (text, supposed) if supposed is not None else text]


def require_own_ranks(seen: Mapping[str, Copy], ranks: Mapping[str, Sequence[int]]) -> List[str]:
    """Refuse ranks' files that are on other nodes than those that will load them.

    Args:
        seen: what the nodes say.
        ranks: node → the ranks that it will run; empty: not known.
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
                "the file of rank %d is on %s, and %s will run rank %d"
                % (lacking[0], ", ".join(where) or "no node", node, lacking[0])
            )
    return []


def path_for_job(paths: Mapping[str, str], workdirs: Mapping[str, str]) -> str:
    """Return the path by which the job finds it on every node, absolute if all have the same."""
    if len(set(paths.values())) == 1:
        return next(iter(paths.values()))
    inside = {_inside(path, workdirs.get(node) or "") for node, path in paths.items()}
    if len(inside) == 1:
        path = inside.pop()
        if path:
            return path
    where = ", ".join("%s: %s" % (node, path) for node, path in paths.items())
    raise Unfit("it has no path that is the same on all nodes (%s)" % where)


def _inside(path: str, workdir: str) -> str:
    """Return a path from workdir; empty if it is not in it."""
    try:
        return str(PurePosixPath(path).relative_to(workdir)) if workdir else ""
    except ValueError:
        return ""
