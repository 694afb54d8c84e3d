"""Says why a run stands still: which rank, on which node, at which line, since when, and why."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterctl.hang import kinds
from clusterctl.hang.look import Look, inside, who
from clusterctl.hang.nccl import launches, unreached
from clusterctl.hang.recorder import recorded
from clusterctl.model.dump import NodeDump
from clusterctl.model.verdict import Verdict
from clusterctl.safe_text import strip_controls

KINDS: tuple[Callable[[Look], Verdict | None], ...] = (
    kinds.stopped_rank,
    kinds.ended_rank,
    kinds.storage,
    kinds.network,
    kinds.lock,
    kinds.data_loader,
    kinds.swap,
    recorded,
    launches,
    unreached,
    kinds.absent_node,
    kinds.order,
    kinds.elsewhere,
    kinds.all_busy,
    kinds.together,
)
"""The most certain first."""


_LONGEST = 2000
"""Characters of a verdict: a node may send endless names."""


def verdict(dumps: Sequence[NodeDump], missing: Sequence[str] = ()) -> Verdict:
    """Return the most certain verdict.

    Args:
        dumps: what the nodes answered, each under the name by which it was asked.
        missing: nodes that did not answer.
    """
    look = Look(dumps, missing)
    found = (judge(look) for judge in KINDS)
    first = next(filter(None, found), None) or _unknown(look)
    return replace(first, text=strip_controls(first.text[:_LONGEST]))


def _unknown(look: Look) -> Verdict:
    """Return what is known although nothing tells who is at fault, or why it is not known."""
    places = [f"{who([one])} is {inside(one)}" for one in look.live if inside(one)]
    unseen = [
        f"{who([one])}: {one.own.missing}" for one in look.live if one.own and one.own.missing
    ]
    more = ", ".join(places[:2] + unseen[:1])
    text = "nothing tells which rank the others wait for"
    return Verdict(kind="unknown", text=f"{text}: {more}" if more else text)
