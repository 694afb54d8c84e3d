"""All ranks at one moment, sorted by what they do, and the words for them."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from clusterctl.hang.doing import Doing, all_doing, spot, waits_for
from clusterctl.logs.ranks import fold_ranks, name_ranks
from clusterctl.model.dump import Frame, NodeDump
from clusterctl.model.verdict import HangKind, Verdict

_MINUTE, _HOUR = 60, 3600
_PLURAL = {"is": "are", "has": "have"}


class Look:
    """What the nodes answered."""

    def __init__(self, dumps: Sequence[NodeDump], missing: Sequence[str]) -> None:
        """Sort it; `missing`: nodes that did not answer."""
        self.nodes = tuple(dumps)
        self.missing = tuple(missing)
        self.ranks = all_doing(dumps)
        self.timed_out = any(node.timed_out for node in dumps)
        """Those that have ended had waited in vain, and some that live are why."""

    @cached_property
    def live(self) -> tuple[Doing, ...]:
        """The ranks that have a process."""
        return tuple(one for one in self.ranks if one.own)

    @cached_property
    def waiting(self) -> tuple[Doing, ...]:
        """The ranks that wait for others: in a collective; if none tells, those at one place."""
        told = tuple(one for one in self.live if one.operation)
        if told:
            return told
        # Python shows no collective of a rank that waits for its GPU, in loss.item() for example.
        places = Counter(spot(one.where) for one in self.live)
        common, count = places.most_common(1)[0] if places else ("", 0)
        if 2 * count <= len(self.live) or count == len(self.live):
            return ()
        return tuple(one for one in self.live if spot(one.where) == common)

    @cached_property
    def apart(self) -> tuple[Doing, ...]:
        """The ranks that do something else while others wait, or had waited."""
        if self.timed_out and not self.waiting:
            seen = tuple(one for one in self.live if one.where)
            # At several places, some may be about to time out, too.
            return seen if len({spot(one.where) for one in seen}) == 1 else ()
        waiting = set(map(id, self.waiting))  # two nodes may tell of one rank
        return tuple(one for one in self.live if waiting and id(one) not in waiting)

    @cached_property
    def owners(self) -> dict[str, set[str]]:
        """By address, the nodes that have it."""
        owners: dict[str, set[str]] = {}
        for node in self.nodes:
            for address in node.addresses:
                owners.setdefault(address, set()).add(node.node)
        return owners

    def others(self, but: Sequence[Doing] = ()) -> str:
        """Return a clause about those that wait: `ranks 0-6 wait for it in all_reduce at …`."""
        left_out = set(map(id, but))
        waiting = [one for one in self.waiting if id(one) not in left_out]
        if not waiting:
            gone = [one.rank for one in self.ranks if self.timed_out and one.dump.ended]
            return f"; {name_ranks(gone)} had waited in vain" if gone else ""
        ranks = name_ranks(one.rank for one in waiting)
        common, _ = Counter(inside(one) for one in waiting).most_common(1)[0]
        if not waiting[0].operation:
            return f"; {ranks} {agree('is', waiting)} {common}"
        verb = agree("waits for", waiting)
        return f"; {ranks} {verb} {'it' if len(but) == 1 else 'them'} {common}"


def inside(one: Doing) -> str:
    """Return `in all_reduce at train.py:88 train_step`."""
    where = spot(one.where)
    parts = (f"in {one.operation}" if one.operation else "", f"at {where}" if where else "")
    return " ".join(filter(None, parts))


def who(ranks: Sequence[Doing]) -> str:
    """Return `rank 7 on gpu2`, `rank 1 (pid 4711) on gpu2`, `ranks 4-7 on gpu2 and gpu3`."""
    nodes = tuple(dict.fromkeys(one.node for one in ranks))
    pids = [f"pid {one.own.pid}" for one in ranks if one.several and one.own]
    of_several = f" ({named(pids)})" if pids else ""
    return f"{name_ranks(one.rank for one in ranks)}{of_several} on {named(nodes)}"


def agree(words: str, ranks: Sequence[Doing]) -> str:
    """Return a verb and what follows it for one rank or several: `sleeps`, `sleep`."""
    if len(ranks) == 1:
        return words
    verb, space, rest = words.partition(" ")
    return f"{_PLURAL.get(verb) or verb.removesuffix('s')}{space}{rest}"


def says(ranks: Sequence[Doing], words: str) -> str:
    """Return the ranks with a verb: `ranks 4-7 on gpu2 sleep`."""
    return f"{who(ranks)} {agree(words, ranks)}"


def named(names: Sequence[str]) -> str:
    """Return `gpu1`, `gpu1 and gpu2`, `gpu1, gpu2 and 6 more`."""
    if len(names) > 3:  # noqa: PLR2004
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def does(one: Doing) -> str:
    """Return what a rank does that waits for no other one: `sleeps`, `computes`, `is`."""
    if one.busy:
        return "computes"
    return waits_for(one.main) or "is"


def whole_stack(ranks: Sequence[Doing]) -> str:
    """Return the command that shows more of what they do."""
    numbers = fold_ranks(one.rank for one in ranks)
    return f"clusterctl dump {ranks[0].run} --rank {numbers} shows the whole stack"


def since(ranks: Sequence[Doing]) -> float | None:
    """Return for how long the first of them has been quiet, if that was watched."""
    return ranks[0].dump.quiet_s


def lasting(ranks: Sequence[Doing]) -> str:
    """Return `, for 5 min`; empty if it is not known."""
    seconds = since(ranks)
    if seconds is None:
        return ""
    for size, unit in ((_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * size:
            return f", for {seconds / size:.0f} {unit}"
    return f", for {seconds:.0f} s"


def blame(
    kind: HangKind, ranks: Sequence[Doing], text: str, remedy: str = "", where: Frame | None = None
) -> Verdict:
    """Return a verdict that names these ranks."""
    return Verdict(
        kind=kind,
        ranks=tuple(sorted({one.rank for one in ranks})),
        nodes=tuple(dict.fromkeys(one.node for one in ranks)),
        where=where or (ranks[0].where if ranks else None),
        since_s=since(ranks) if ranks else None,
        text=text,
        remedy=remedy,
    )
