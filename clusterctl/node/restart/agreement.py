"""The checkpoint that the next attempt starts from, by what the nodes told each other. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from clusterctl.node.checkpoints.copies import (
    Copy,
    Part,
    Unfit,
    newest_first,
    path_for_job,
    require_fit,
    rivals,
)
from clusterctl.node.peer_link import fields

MOST_TOLD = 8
"""Checkpoints of a node that it tells the master: its newest."""
MOST_BESIDE = 16
"""Runs that it tells of which may have written one."""
MOST_SKIPPED = 3
"""Newer ones that a message names."""
_MOST_FILES, _MOST_RANKS, _MOST_RANK = 4096, 4096, 1 << 20
_TEXT, _LONG_TEXT = 255, 4096


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


class Sight(NamedTuple):
    """What a node sees in the folder of the job's checkpoints."""

    workdir: str
    checkpoints: Tuple[Copy, ...]
    problem: str = ""
    """Why it could not look."""


def agree(sights: Mapping[str, Sight], run: str) -> Agreement:
    """Return the newest checkpoint that this run wrote, complete and equal on every node.

    Args:
        sights: node → what it sees, of all nodes that will run; the master first.
    """
    problems = ["%s: %s" % (node, sight.problem) for node, sight in sights.items() if sight.problem]
    if problems:
        return Agreement(why="; ".join(problems))
    found = {node: sight.checkpoints for node, sight in sights.items()}
    workdirs = {node: sight.workdir for node, sight in sights.items()}
    skipped: List[str] = []
    shared: List[Sequence[str]] = []
    saves: Set[object] = set()
    written = False
    ordered = newest_first(found)
    for name, seen in ordered:
        first = next(iter(seen.values()))
        if run in first.beside:
            written = True
            if first.beside not in shared:
                shared.append(first.beside)
                others = " and ".join(one for one in first.beside if one != run)
                why = "%s: %s ran then, too, and nothing says which run wrote it"
                skipped.append(why % (name, others))
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
        own = [(one, told) for one, told in ordered if next(iter(told.values())).run == run]
        skipped += ["%s: %s" % each for each in rivals(own, name)]
        return Agreement(newest, skipped=tuple(skipped[:MOST_SKIPPED]))
    why = "; ".join(skipped[:MOST_SKIPPED]) if written else ""
    return Agreement(why=why, skipped=tuple(skipped[:MOST_SKIPPED]))


def _require_one_save(seen: Mapping[str, Copy], run: str) -> None:
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
    told = [{name: one.get(name) for name in Copy._fields} for one in candidates]
    for one in told:
        one["beside"] = list(one["beside"] or ())[:MOST_BESIDE]
        one["files"] = dict(list((one["files"] or {}).items())[:_MOST_FILES])
    seen = {"": [Copy(**_SEEN(one, "a checkpoint")) for one in told]}
    names = [name for name, _ in newest_first(seen)][:MOST_TOLD]
    return {"workdir": workdir, "checkpoints": [one for one in told if one["name"] in names]}


def read_sight(value: object) -> Sight:
    """Read what a node tells; raise MessageError if it cannot be."""
    told = _SIGHT(value, "what a node sees")
    return Sight(**{**told, "checkpoints": tuple(Copy(**one) for one in told["checkpoints"])})


def _part(value: object, name: str) -> Part:
    told: Dict[str, Any] = _PART(value, name)
    told.update({key: tuple(one) for key, one in told.items() if isinstance(one, list)})
    return Part(**told)


_SHORT, _LONG = (
    fields.optional(fields.text(_TEXT), ""),
    fields.optional(fields.text(_LONG_TEXT), ""),
)
_COUNT, _SIZE = fields.optional(fields.whole()), fields.optional(fields.whole(_MOST_RANK))
_PART = fields.record(
    ranks=fields.many(fields.whole(_MOST_RANK), _MOST_RANKS, least=1),
    metadata=fields.flag,
    steps=fields.optional(fields.many(fields.whole(), _MOST_RANKS), ()),
    saved=fields.many(fields.number(), _MOST_RANKS, least=1),
    world_size=_SIZE,
    supposed=_SIZE,
    whole=fields.flag,
)
_SEEN = fields.record(
    name=_SHORT,
    path=_LONG,
    complete=fields.flag,
    why=_LONG,
    hash=_SHORT,
    time=fields.optional(fields.number(), 0.0),
    step=_COUNT,
    epoch=_COUNT,
    date=_COUNT,
    run=_SHORT,
    mixed=_LONG,
    beside=fields.optional(fields.many(fields.text(_TEXT), MOST_BESIDE), ()),
    files=fields.optional(
        fields.table(fields.text(_TEXT, cut=True), _MOST_FILES, name_limit=_LONG_TEXT), {}
    ),
    part=fields.optional(_part),
)
_SIGHT = fields.record(
    workdir=_LONG, checkpoints=fields.optional(fields.many(_SEEN, MOST_TOLD), ()), problem=_LONG
)
