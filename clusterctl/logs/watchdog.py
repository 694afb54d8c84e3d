"""Reads the lines of NCCL's watchdog across ranks: who was behind when all of them timed out.

Of each process group the watchdog says in which collective a rank waited, and a rank that is asked
for its flight recorder says up to which collective it had come. The first to complain is seldom the
one for which the others waited.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from clusterctl.logs.ranks import name_ranks

BRANCHED = "let all ranks call the same collectives in the same order, whatever their data says"
SIZES = "give all ranks tensors of the same size: print their shapes before that collective"
_WORK = re.compile(
    r"\bWork\w+\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+), NumelIn=(?P<size>\d+)"
)
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?(?P<group>[^\[\]]{1,200}?) Rank \d+\]")
_AT = re.compile(r"\bat work(?: sequence id)?: (\d+)")
_STATUS = re.compile(
    r"\blast enqueued (?:\w+ )?work: (?P<enqueued>\d+)"
    r"(?:, last completed (?:\w+ )?work: (?P<completed>\d+))?",
    re.IGNORECASE,
)
_SAME_SIZE = re.compile(r"ALLREDUCE|BROADCAST|REDUCE\b|_REDUCE_OOP|ALLGATHER|REDUCE_SCATTER")
"""Of these all ranks of a group give as many elements."""
_PAIRS = frozenset(("SEND", "RECV"))
"""Each of two ranks counts them by itself."""
_LONGEST = 2000
"""Characters in which torch says it."""
_NO_SIZE = 1 << 63
"""Torch writes such a size where there is none."""


class Standing(NamedTuple):
    """How far a rank had come in one process group."""

    rank: int
    work: tuple[int, str, int] | None = None
    """Number, kind and size of the collective in which it waited; None: in none."""
    enqueued: int | None = None
    completed: int | None = None

    def __str__(self) -> str:
        """Return where it waited as a user reads it."""
        if self.work is None:
            return "nothing"
        number, kind, size = self.work
        of = f" of {size}" if size < _NO_SIZE else ""
        more = f" (enqueued up to #{self.enqueued})" if self.enqueued is not None else ""
        return f"#{number} {kind}{of}{more}"


class Behind(NamedTuple):
    """The ranks for which the others waited."""

    ranks: tuple[int, ...]
    message: str
    """About the first of them."""
    remedy: str = ""
    """Empty: that depends on what it did instead."""


def behind(lines: Mapping[int, Sequence[str]], nodes: Mapping[int, str]) -> Behind | None:
    """Return who was behind; None: the watchdog's lines do not tell."""
    groups: dict[str, list[Standing]] = {}
    silent: list[int] = []
    for rank, printed in sorted(lines.items()):
        standings = _standings(rank, printed)
        if not standings:
            silent.append(rank)
        for group, standing in standings.items():
            groups.setdefault(group, []).append(standing)
    waiting = {each.rank for found in groups.values() for each in found if each.work}
    for found in groups.values():
        known = _branched(found, nodes, silent) or _late(found, nodes, waiting)
        if known is not None:
            return known
    return None


def _standings(rank: int, lines: Sequence[str]) -> dict[str, Standing]:
    """Return how far a rank had come in each group of which it printed something."""
    found: dict[str, Standing] = {}
    pending: dict[str, Standing] = {}
    """By the number of the collective: several groups may time out at once."""
    for line in (line[:_LONGEST] for line in lines):
        group = _GROUP.search(line)
        status = _STATUS.search(line)
        work = _WORK.search(line)
        if work:
            waits = Standing(rank, (int(work["number"]), work["kind"], int(work["size"])))
            if group:
                found.setdefault(group["group"], waits)
            elif all(known.work != waits.work for known in found.values()):
                pending.setdefault(work["number"], waits)
        elif group and status:
            # The line with the group follows the one with the collective.
            at = _AT.search(line)
            waits = pending.pop(at[1], Standing(rank)) if at else Standing(rank)
            known = found.get(group["group"]) or waits
            enqueued, completed = status["enqueued"], status["completed"]
            found[group["group"]] = known._replace(
                enqueued=int(enqueued), completed=int(completed) if completed else None
            )
    if pending:
        found.setdefault("", next(iter(pending.values())))
    return found


def _branched(
    found: Sequence[Standing], nodes: Mapping[int, str], silent: Sequence[int]
) -> Behind | None:
    """Return that ranks of a group waited in different collectives; the one behind is named."""
    waited = [each for each in found if each.work and each.work[1] not in _PAIRS]
    waited.sort(key=lambda each: (each.work or (0,))[0])
    other = next((each for each in waited if _differ(waited[0], each)), None)
    if other is None or not (waited[0].work and other.work):
        return None
    same = waited[0].work[:2] == other.work[:2]
    why = "their sizes differ" if same else "they took different branches"
    message = f"it waited in {waited[0]}, and {_name(other, nodes)} in {other}: {why}"
    if silent:
        message += f"; no such line of {name_ranks(silent)}"
    return Behind((waited[0].rank,), message, SIZES if same else BRANCHED)


def _differ(one: Standing, other: Standing) -> bool:
    if one.work is None or other.work is None or one.work[:2] != other.work[:2]:
        return one.work != other.work
    return bool(_SAME_SIZE.search(one.work[1])) and one.work[2] != other.work[2]


def _late(
    found: Sequence[Standing], nodes: Mapping[int, str], waiting: Container[int]
) -> Behind | None:
    """Return the ranks of a group that had not come to the collective in which others waited.

    A rank that waited in another group had a reason not to come.
    """
    waited = [each for each in found if each.work and each.work[1] not in _PAIRS]
    if not waited or waited[0].work is None:
        return None
    number = waited[0].work[0]
    late = [
        each
        for each in found
        if each.rank not in waiting and each.enqueued is not None and each.enqueued < number
    ]
    if not late:
        return None
    first, rest = min(late, key=lambda each: each.enqueued or 0), len(waited) - 1
    others = f" and {rest} more" if rest else ""
    done = "completed" if first.completed == first.enqueued else "entered"
    message = (
        f"it did not come to {waited[0]}, in which {_name(waited[0], nodes)}{others} waited:"
        f" it had {done} all up to #{first.enqueued}"
    )
    ranks = (first.rank, *(each.rank for each in late if each is not first))
    return Behind(ranks, message)


def _name(one: Standing, nodes: Mapping[int, str]) -> str:
    return f"rank {one.rank} of {nodes[one.rank]}"
