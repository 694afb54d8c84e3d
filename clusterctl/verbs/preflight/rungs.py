"""How far `check --deep` came, over all nodes."""

from collections.abc import Mapping

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.values import dataclass

TITLES = {
    "sum": "1 sum on CPUs",
    "gpus": "2 each GPU alone",
    "dcgm": "3 DCGM",
    "inside": "4 GPUs of a node",
    "across": "5 pairs of nodes",
}
"""The rungs in order, as a table calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """One rung on all nodes that took part."""

    name: str
    tried: bool
    broken: tuple[str, ...] = ()
    """The nodes where it broke; the rungs above were not tried then."""
    seconds: float = 0.0
    """Of the slowest node."""


def rung_rows(facts: Mapping[str, NodeFacts]) -> tuple[RungRow, ...]:
    """Return the rungs that were tried, and those above a broken one; empty without a ladder."""
    ladders = {name: node.ladder for name, node in facts.items() if node.ladder}
    seconds: dict[str, list[float]] = {}
    broken: dict[str, list[str]] = {}
    for ladder in ladders.values():
        for rung in ladder.rungs:
            seconds.setdefault(rung.name, []).append(rung.seconds)
        for name in ladder.blamed if ladder.stopped else ():
            known = broken.setdefault(ladder.stopped, [])
            known.extend([name] if name not in known else [])
    # A node that could not even begin is the cause on the first rung.
    silent = [name for name, ladder in ladders.items() if not ladder.rungs]
    if silent:
        first = next((name for name in TITLES if name in seconds), "sum")
        broken.setdefault(first, []).extend(n for n in silent if n not in broken[first])
    if not ladders:
        return ()
    return tuple(
        RungRow(
            name=name,
            tried=name in seconds or name in broken,
            broken=tuple(broken.get(name, ())),
            seconds=max(seconds.get(name, [0.0])),
        )
        for name in TITLES
        if name in seconds or broken
    )
