"""The checkpoint that the next attempt starts from, by what the nodes told each other. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from clusterctl.node.checkpoints.copies import (
    Unfit,
    newest_first,
    path_for_job,
    require_fit,
)

MOST_TOLD = 8
"""Checkpoints of a node that it tells the master: its newest."""
MOST_SKIPPED = 3
"""Newer ones that a message names."""
_MOST_FILES, _MOST_RANKS = 4096, 4096
_TEXT, _LONG_TEXT = 255, 4096
_MOST, _MOST_RANK = 1 << 53, 1 << 20


class SightError(ValueError):
    """What a node tells cannot be."""


class Checkpoint(NamedTuple):
    """A checkpoint that a run can be started from on every node."""

    path: str
    """As the job is given it."""
    name: str
    step: Optional[int] = None
    epoch: Optional[int] = None
    time: float = 0.0
    """When it was written, by the clock of the first node."""

    def newer_than(self, other: Optional[Checkpoint]) -> bool:
        """Tell whether a run got further."""
        if other is None or self.step is None or other.step is None:
            return other is None or self.time > other.time
        if self.epoch is not None and other.epoch is not None:
            return (self.epoch, self.step) > (other.epoch, other.step)
        return self.step > other.step


class Agreement(NamedTuple):
    """What the nodes agree on."""

    newest: Optional[Checkpoint] = None
    why: str = ""
    """Why there is none, although the run has written some; empty: it has written none."""
    skipped: Tuple[str, ...] = ()
    """Newer ones, each with why it is not taken."""


class SeenPart(NamedTuple):
    """The files of some ranks, as a node tells it."""

    ranks: Tuple[int, ...]
    metadata: bool
    steps: Tuple[int, ...]
    saved: Tuple[float, ...]
    world_size: Optional[int]
    supposed: Optional[int]
    whole: bool


class Seen(NamedTuple):
    """A checkpoint as a node tells it."""

    name: str
    path: str
    complete: bool
    why: str
    hash: str
    time: float
    step: Optional[int]
    epoch: Optional[int]
    date: Optional[int]
    run: str
    mixed: str
    beside: Tuple[str, ...]
    files: Dict[str, str]
    part: Optional[SeenPart]


class Sight(NamedTuple):
    """What a node sees in the folder of the job's checkpoints."""

    workdir: str
    checkpoints: Tuple[Seen, ...]
    problem: str = ""
    """Why it could not look."""


def agree(sights: Mapping[str, Sight], run: str) -> Agreement:
    """Return the newest checkpoint that this run wrote, complete and equal on every node.

    Args:
        sights: node → what it sees, of all nodes that will run; the master first.
        run: the run's id.
    """
    problems = ["%s: %s" % (node, sight.problem) for node, sight in sights.items() if sight.problem]
    if problems:
        return Agreement(why="; ".join(problems))
    found = {node: sight.checkpoints for node, sight in sights.items()}
    workdirs = {node: sight.workdir for node, sight in sights.items()}
    skipped: List[str] = []
    saves: Set[object] = set()
    written = False
    for name, seen in newest_first(found):
        first = next(iter(seen.values()))
        if first.run != run or first.beside:
            continue
        # The first save of a run that died meanwhile is none yet; a second one proves the first.
        saves.add(name if first.step is None else first.step)
        written = (
            written or len(saves) > 1 or any(one.complete or one.part for one in seen.values())
        )
        try:
            _require_one_save(seen, run)
            require_fit(seen, list(sights))
            path = path_for_job({node: one.path for node, one in seen.items()}, workdirs)
        except Unfit as unfit:
            skipped.append("%s: %s" % (name, unfit))
            continue
        newest = Checkpoint(path, name, first.step, first.epoch, first.time)
        return Agreement(newest, skipped=tuple(skipped[:MOST_SKIPPED]))
    why = "; ".join(skipped[:MOST_SKIPPED]) if written else ""
    return Agreement(why=why, skipped=tuple(skipped[:MOST_SKIPPED]))


def _require_one_save(seen: Mapping[str, Seen], run: str) -> None:
    """Raise Unfit for what may be of two saves, or of another run as a node finds.

    Whether it counts at all, the first node tells: the run began there before anywhere else. A node
    that joined later knows of no run that wrote it. For it, a copy of the very same time is proof.
    """
    written = next(iter(seen.values())).time
    mixed = next((one.mixed for one in seen.values() if one.mixed), "")
    if mixed:
        raise Unfit(mixed)
    others = [
        node
        for node, one in seen.items()
        if one.beside or one.run not in (run, "") or (not one.run and one.time != written)
    ]
    if others:
        raise Unfit("%s cannot tell that this run wrote it" % ", ".join(others))


def tell_sight(workdir: str, candidates: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return what a node tells the others, from the answer of `checkpoints`: its newest few."""
    told = [{name: one.get(name) for name in Seen._fields} for one in candidates]
    for one in told:
        one["files"] = dict(list((one["files"] or {}).items())[:_MOST_FILES])
    seen = {"": [_seen(one) for one in told]}
    names = [name for name, _ in newest_first(seen)][:MOST_TOLD]
    return {"workdir": workdir, "checkpoints": [one for one in told if one["name"] in names]}


def read_sight(value: object) -> Sight:
    """Read what a node tells.

    Raises:
        SightError: it cannot be.
    """
    if not isinstance(value, dict):
        raise SightError("expected what a node sees, found %.200r" % (value,))
    told = value.get("checkpoints") or []
    if not isinstance(told, list) or len(told) > MOST_TOLD:
        raise SightError("checkpoints of a node: found %.200r" % (told,))
    return Sight(
        workdir=_text(value, "workdir", _LONG_TEXT),
        checkpoints=tuple(_seen(one) for one in told),
        problem=_text(value, "problem", _LONG_TEXT),
    )


def _seen(value: object) -> Seen:
    if not isinstance(value, dict):
        raise SightError("expected a checkpoint, found %.200r" % (value,))
    files = value.get("files") or {}
    if not isinstance(files, dict) or len(files) > _MOST_FILES:
        raise SightError("files of a checkpoint: found %.200r" % (files,))
    beside = value.get("beside") or ()
    return Seen(
        name=_text(value, "name"),
        path=_text(value, "path", _LONG_TEXT),
        complete=value.get("complete") is True,
        why=_text(value, "why", _LONG_TEXT),
        hash=_text(value, "hash"),
        time=_number(value, "time") or 0.0,
        step=_whole(value, "step"),
        epoch=_whole(value, "epoch"),
        date=_whole(value, "date"),
        run=_text(value, "run"),
        mixed=_text(value, "mixed", _LONG_TEXT),
        beside=("another",) if beside else (),
        files={str(name)[:_LONG_TEXT]: str(digest)[:_TEXT] for name, digest in files.items()},
        part=_part(value.get("part")),
    )


def _part(value: object) -> Optional[SeenPart]:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise SightError("expected files of ranks, found %.200r" % (value,))
    ranks, saved = _numbers(value, "ranks"), _numbers(value, "saved")
    sizes = (_whole(value, "world_size"), _whole(value, "supposed"))
    if not ranks or not saved or max(*ranks, *(size or 0 for size in sizes)) > _MOST_RANK:
        raise SightError("expected files of ranks, found %.200r" % (value,))
    return SeenPart(
        ranks=tuple(map(int, ranks)),
        metadata=value.get("metadata") is True,
        steps=tuple(map(int, _numbers(value, "steps"))),
        saved=tuple(map(float, saved)),
        world_size=sizes[0],
        supposed=sizes[1],
        whole=value.get("whole") is True,
    )


def _text(value: Mapping[str, Any], name: str, most: int = _TEXT) -> str:
    found = value.get(name) or ""
    if not isinstance(found, str) or len(found) > most:
        raise SightError("%s: found %.200r" % (name, found))
    return found


def _number(value: Mapping[str, Any], name: str) -> Optional[float]:
    found = value.get(name)
    if found is None:
        return None
    if not _is_number(found):
        raise SightError("%s: found %.200r" % (name, found))
    return float(found)


def _whole(value: Mapping[str, Any], name: str) -> Optional[int]:
    found = _number(value, name)
    return None if found is None else int(found)


def _numbers(value: Mapping[str, Any], name: str) -> List[float]:
    found = value.get(name) or []
    if not isinstance(found, (list, tuple)) or len(found) > _MOST_RANKS:
        raise SightError("%s: found %.200r" % (name, found))
    if not all(map(_is_number, found)):
        raise SightError("%s: found %.200r" % (name, found))
    return list(found)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST
