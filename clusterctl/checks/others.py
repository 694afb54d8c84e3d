"""Compares each node with all others, in one look at them: a cluster may have a thousand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import median


def medians_of_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return for each node the median of the other nodes' values; for a single one nothing."""
    ordered = sorted(values.values())
    middle = len(ordered) // 2
    found: dict[str, float] = {}
    # Of the places in the list without the node's own value.
    near = (middle - 1, middle) if len(ordered) % 2 else (middle - 1,)
    for name, own in values.items() if len(ordered) > 1 else ():
        place = bisect_left(ordered, own)
        found[name] = median(ordered[i if i < place else i + 1] for i in near)
    return found
