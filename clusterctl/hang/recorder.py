"""Compares what the flight recorders of all ranks tell: who lacks, who entered something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from clusterctl.hang.doing import Doing, place, spot
from clusterctl.hang.look import Look, agree, blame, does, lasting, says, who, whole_stack
from clusterctl.logs.ranks import name_ranks
from clusterctl.logs.watchdog import BRANCHED, SIZES
from clusterctl.model.dump import Collective
from clusterctl.model.verdict import Verdict

_SAME_SIZES = frozenset((
    "all_reduce", "broadcast", "reduce", "barrier", "all_reduce_barrier", "_broadcast_oop",
    "_reduce_oop", "_all_gather_base", "all_gather_into_tensor", "_reduce_scatter_base",
    "reduce_scatter_tensor",
))  # fmt: skip
"""Of these all ranks of a group give as many elements."""


def recorded(look: Look) -> Verdict | None:
    """Say which rank did not enter the first collective that not all entered alike."""
    told = [one for one in look.ranks if one.dump.collectives]
    groups = dict.fromkeys(each.group for one in told for each in one.dump.collectives)
    found = (
        _differ(at, sequence) or _lacking(told, at, group, sequence)
        for group in groups
        for sequence, at in _unfinished(told, group)
    )
    return next(filter(None, found), None)


def _unfinished(
    told: list[Doing], group: str
) -> Iterator[tuple[int, Mapping[int, tuple[Doing, Collective]]]]:
    """Yield what each rank entered as a group's collectives that not all of them completed."""
    by_number: dict[int, dict[int, tuple[Doing, Collective]]] = {}
    for one in told:
        for each in one.dump.collectives:
            if each.group == group:
                by_number.setdefault(each.sequence, {})[one.rank] = (one, each)
    for sequence in sorted(by_number):
        if any(each.state != "completed" for _, each in by_number[sequence].values()):
            yield sequence, by_number[sequence]


def _differ(at: Mapping[int, tuple[Doing, Collective]], sequence: int) -> Verdict | None:
    """Say that one collective has several operations, or sizes that must be equal."""
    kinds = Counter(each.operation for _, each in at.values())
    same = len(kinds) == 1
    if same and next(iter(kinds)) not in _SAME_SIZES:
        return None
    forms = Counter(_form(each, same=same) for _, each in at.values())
    if len(forms) == 1:
        return None
    (common, _), (rare, _) = forms.most_common()[0], forms.most_common()[-1]
    ranks = [one for one, each in at.values() if _form(each, same=same) == rare]
    rest = [one.rank for one, each in at.values() if _form(each, same=same) == common]
    frame = place(at[ranks[0].rank][1].frames)
    there = spot(place(at[rest[0]][1].frames))
    number = f"#{sequence} {next(iter(kinds))} with" if same else f"#{sequence} as"
    why = "their sizes or types differ" if same else "they took different branches"
    text = (
        f"{says(ranks, 'entered')} {number} {rare} at {spot(frame)},"
        f" {name_ranks(rest)} {'with' if same else 'as'} {common} at {there}{lasting(ranks)}: {why}"
    )
    return blame("shape" if same else "order", ranks, text, SIZES if same else BRANCHED, frame)


def _form(each: Collective, *, same: bool) -> str:
    """Return what is compared, as it is shown."""
    sizes = " ".join(str(list(size)) for size in each.input_sizes)
    return f"{each.dtype} {sizes}" if same else each.operation


def _lacking(
    told: list[Doing],
    at: Mapping[int, tuple[Doing, Collective]],
    group: str,
    sequence: int,
) -> Verdict | None:
    """Say which ranks have completed all before a collective, and did not enter it."""
    ranks = [
        one
        for one in told
        if one.rank in _members(told, group)
        and all(
            each.sequence < sequence and each.state == "completed"
            for each in one.dump.collectives
            if each.group == group
        )
    ]
    if not ranks or any(one.rank in at for one in ranks):
        return None
    waiting = [one for one, _ in at.values()]
    first, operation = spot(place(at[waiting[0].rank][1].frames)), at[waiting[0].rank][1].operation
    where = f" {agree(does(ranks[0]), ranks)} at {spot(ranks[0].where)}" if ranks[0].own else ""
    did = f"{'and ' if where else ''}did not enter #{sequence} {operation}"
    names = name_ranks(one.rank for one in waiting)
    of = "" if "default_pg" in group else f" of group {group}"
    text = (
        f"{who(ranks)}{where} {did}{of}{lasting(ranks)};"
        f" {names} {agree('waits', waiting)} in it at {first}"
    )
    return blame("absent", ranks, text, whole_stack(ranks))


def _members(told: list[Doing], group: str) -> frozenset[int]:
    """Return the ranks of a group: as a recorder tells, else those that recorded it."""
    mine = [(one, each) for one in told for each in one.dump.collectives if each.group == group]
    ranks = {rank for _, each in mine for rank in each.ranks}
    return frozenset(ranks or {one.rank for one, _ in mine})
