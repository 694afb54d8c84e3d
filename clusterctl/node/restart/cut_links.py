"""Which nodes to leave out because others of the run do not reach them. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Collection, Dict, Mapping, Sequence


def cut_off(
    told: Mapping[str, Collection[str]], order: Sequence[str], idle: Collection[str]
) -> Dict[str, str]:
    """Return the nodes without which all others reach each other, each with why.

    A link is dead if both of its nodes name each other: no node puts out another by its word alone.
    Each time the node with the most dead links goes, so that few do. Of equal ones a spare goes
    first, then the one of the higher place.

    Args:
        told: node → the nodes that it does not reach.
        order: the nodes by their places.
        idle: those that stand by. Between two of them no link is needed.
    """
    dead = {
        frozenset((node, other))
        for node, others in told.items()
        for other in others
        if other != node and node in told.get(other, ()) and not {node, other} <= set(idle)
    }
    out: Dict[str, str] = {}
    while dead:
        counts = Counter(node for link in dead for node in link)
        worst = max(counts, key=lambda node: (counts[node], node in idle, order.index(node)))
        others = [node for node in order if frozenset((worst, node)) in dead]
        out[worst] = "it does not reach %s" % ", ".join(others)
        dead = {link for link in dead if worst not in link}
    return out
