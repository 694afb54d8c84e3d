"""Says since when a GPU, or a rank on CPUs, has done much less than before. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.run.samples.row import Number, Row

BELOW = 2 / 3
"""Less than this part of the usual use is low."""
LEAST_PERCENT = 20.0
"""Who usually does less than this is not judged."""
KNOWN_SECONDS = 300.0
"""How long the usual use must have lasted."""
FELL_SECONDS, TIMES_LONGEST = 300.0, 3.0
"""How long use must be low, also in times of the longest that it was low before: saving a
checkpoint or an evaluation is no fall."""
RISES, SINKS = 30.0, 600.0
"""Seconds in which the usual use follows what is more, and what is a little less."""


class Fall(NamedTuple):
    """Use that fell and has not risen since."""

    since: float
    before: float
    now: float


def find_falls(rows: Sequence[Row]) -> Optional[Dict[str, Any]]:
    """Return what fell first on a node, and all that did: GPUs, or ranks if it has no GPU."""
    on_gpu = any(row.gpus for row in rows)
    # The others are of other runs, unless a container hides which rank computes where.
    own = {one.number for row in rows for one in row.gpus if one.rank is not None}
    columns: Dict[int, List[Tuple[float, float, Number]]] = {}
    for row in rows:
        told = (
            [(one.number, one.percent) for one in row.gpus if not own or one.number in own]
            if on_gpu
            else [(one.rank, one.cpu_percent) for one in row.ranks]
        )
        for number, value in told:
            columns.setdefault(number, []).append((row.time, row.seconds, value))
    found = {number: fall for number, fall in zip(columns, map(fall_of, columns.values())) if fall}
    if not found:
        return None
    first = min(found.values(), key=lambda one: one.since)
    what = "GPU" if on_gpu else "rank"
    return {"what": what, "numbers": sorted(found), **first._asdict()}


def fall_of(column: Iterable[Tuple[float, float, Number]]) -> Optional[Fall]:
    """Judge one series of moments, the seconds before each, and percent."""
    usual = known = longest = low = summed = 0.0
    since = 0.0
    for time, seconds, value in column:
        if value is None:
            continue
        if value >= usual * BELOW:
            longest, low, summed = max(longest, low), 0.0, 0.0
            pace = RISES if value > usual else SINKS
            usual += (value - usual) * min(1.0, seconds / pace)
            known = known + seconds if usual >= LEAST_PERCENT else 0.0
            if not known:
                longest = 0.0
        else:
            if not low:
                since = time - seconds
            low, summed = low + seconds, summed + value * seconds
    fell = low >= max(FELL_SECONDS, TIMES_LONGEST * longest)
    if not fell or known < KNOWN_SECONDS:
        return None
    return Fall(round(since, 1), round(usual), round(summed / low))
