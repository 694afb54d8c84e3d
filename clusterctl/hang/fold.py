"""Folds the stacks of all ranks as log lines are folded: equal ones are shown once."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.hang.doing import (
    Doing,
    all_doing,
    in_data_loader,
    is_own,
    main_thread,
    spot,
    stopped,
    waits_for,
)
from clusterctl.logs.entry import Folded, Source
from clusterctl.logs.lines import Line
from clusterctl.model.dump import NodeDump, ProcessDump, ThreadStack

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
        for data, sources in ((line.encode(), sources) for line, sources in ordered)
    ]


def _lines(one: Doing) -> list[str]:
    """Return what a rank's main thread does, and a line for each worker that is not idle."""
    if one.own is None:
        return ["has ended"]
    lines = [_line(one.own, one.operation)]
    busy = (worker for worker in one.workers if any(map(is_own, main_thread(worker).frames)))
    lines += [
        f"its worker: {_line(worker)}" for worker in busy if not _idle_worker(main_thread(worker))
    ]
    return list(dict.fromkeys(lines))


def _idle_worker(thread: ThreadStack) -> bool:
    """Tell whether a data loader's worker waits for the next batch that is asked of it."""
    return in_data_loader(thread) and thread.state == "S"


def _line(process: ProcessDump, operation: str = "") -> str:
    """Return `all_reduce (torch) ← train.py:88 train_step ← train.py:120 main`."""
    thread = main_thread(process)
    own = [spot(frame) for frame in thread.frames if is_own(frame)][:MOST_CALLERS]
    first = f"{operation} (torch)" if operation else ""
    if not (own or operation):
        first = spot(next(iter(thread.frames), None)) or thread.wait or process.missing
    stack = " ← ".join(filter(None, (first, *own))) or "unknown"
    note = "stopped" if stopped(process) else "" if operation else waits_for(thread)
    return f"{stack} ({note})" if note else stack
