"""Folds the stacks of all ranks as log lines are folded: equal ones are shown once."""

from collections.abc import Sequence

from clusterctl.hang.doing import (
    Doing,
    all_doing,
    at_work,
    is_own,
    spot,
    stopped,
    waits_for,
    waits_for_batch,
)
from clusterctl.logs.entry import Folded, Source
from clusterctl.logs.lines import Line
from clusterctl.model.dump import NodeDump, ThreadStack
from clusterctl.safe_text import strip_controls

MOST_CALLERS = 3
"""Lines of the user's own code that are shown of a stack, innermost first."""


def fold(dumps: Sequence[NodeDump]) -> list[Folded]:
    """Return a line for each place that ranks are at, the one with most ranks first."""
    places: dict[str, list[Source]] = {}
    for one in all_doing(dumps):
        for line in _lines(one):
            places.setdefault(line, []).append(Source(one.node, one.rank))
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    return [
        Folded(tuple(dict.fromkeys(sources)), Line(0, len(data), data, "\n"), 0.0)
        for data, sources in ((line.encode(errors="replace"), sources) for line, sources in ordered)
    ]


def _lines(one: Doing) -> list[str]:
    """Return what a rank's main thread does, and a line for each worker that loads a batch."""
    if one.own is None:
        return ["has ended" if one.dump.ended else "no process is seen"]
    lines = [_line(one.main, one.operation, "stopped" if stopped(one.own) else "")]
    loading = ((worker, at_work(worker)) for worker in one.workers)
    lines += [
        f"its worker: {_line(thread, note='stopped' if stopped(worker) else '')}"
        for worker, thread in loading
        if thread
    ]
    return list(dict.fromkeys(lines))


def _line(thread: ThreadStack, operation: str = "", note: str = "") -> str:
    """Return `all_reduce (torch) ← train.py:88 train_step ← train.py:120 main`."""
    own = [spot(frame) for frame in thread.frames if is_own(frame)][:MOST_CALLERS]
    batch = "DataLoader" if waits_for_batch(thread) else ""
    first = operation or batch
    if not (own or first):
        first = spot(next(iter(thread.frames), None)) or thread.wait
    elif first:
        first += " (torch)"
    stack = " ← ".join(filter(None, (first, *own))) or "unknown"
    note = note or ("" if operation or batch else waits_for(thread))
    return strip_controls(f"{stack} ({note})" if note else stack)
