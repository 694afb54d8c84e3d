"""Compares what the flight recorders of all ranks tell: who lacks, who entered something else."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

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


class _Group:
    """What each rank entered in one process group."""

    def __init__(self) -> None:
        self.entered: dict[int, dict[int, tuple[Doing, Collective]]] = {}
        """Number of a collective → rank → what it entered."""
        self.ranks: dict[int, Doing] = {}
        self.newest: dict[int, int] = {}
        """Rank → the highest number."""
        self.waiting: set[int] = set()
        """The ranks that have not completed all that they entered."""

    def add(self, one: Doing, each: Collective) -> None:
        """Take one collective of a rank."""
        self.entered.setdefault(each.sequence, {})[one.rank] = (one, each)
        self.ranks[one.rank] = one
        self.newest[one.rank] = max(each.sequence, self.newest.get(one.rank, 0))
        if each.state != "completed":
            self.waiting.add(one.rank)

    @cached_property
    def _least(self) -> int:
        """The least of the highest numbers of those that completed all that they entered."""
        return min((self.newest.get(one, 0) for one in self.ranks.keys() - self.waiting), default=0)

    def behind(self, sequence: int) -> list[Doing]:
        """Return the ranks that completed all that they entered, and that not."""
        if self._least >= sequence:
            return []
        ranks = sorted(self.ranks.keys() - self.waiting)
        return [self.ranks[rank] for rank in ranks if self.newest.get(rank, 0) < sequence]


def recorded(look: Look) -> Verdict | None:
    """Say which rank did not enter the first collective that not all entered alike."""
    found = (
        _differ(at, sequence) or _lacking(group, name, at, sequence)
        for name, group in _groups(look).items()
        for sequence, at in sorted(group.entered.items())
        if any(each.state != "completed" for _, each in at.values())
    )
    return next(filter(None, found), None)


def _groups(look: Look) -> dict[str, _Group]:
    """Return all groups by name, with the members that recorded nothing in them."""
    groups: dict[str, _Group] = {}
    told = {one.rank: one for one in look.ranks if one.dump.collectives}
    for one in told.values():
        for each in one.dump.collectives:
            group = groups.setdefault(each.group, _Group())
            group.add(one, each)
            for rank in each.ranks:
                if rank in told:
                    group.ranks.setdefault(rank, told[rank])
    return groups


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
    group: _Group, name: str, at: Mapping[int, tuple[Doing, Collective]], sequence: int
) -> Verdict | None:
    """Say which ranks did not enter a collective in which others wait."""
    ranks = group.behind(sequence)
    if not ranks:
        return None
    waiting = [one for one, _ in at.values()]
    _, first = at[waiting[0].rank]
    where = f" {agree(does(ranks[0]), ranks)} at {spot(ranks[0].where)} and" if ranks[0].own else ""
    of = "" if "default_pg" in name else f" of group {name}"
    names = name_ranks(one.rank for one in waiting)
    text = (
        f"{who(ranks)}{where} did not enter #{sequence} {first.operation}{of}{lasting(ranks)};"
        f" {names} {agree('waits', waiting)} in it at {spot(place(first.frames))}"
    )
    return blame("absent", ranks, text, whole_stack(ranks))
