"""The steps of a run without a metrics.jsonl: of trainer_state.json, and of what it printed."""

from __future__ import annotations

import json
import os
from bisect import bisect_right

from clusterctl.node.file_io import find_end, list_folder, modified, read_end, read_json
from clusterctl.node.run.files.progress import first_epoch, own_progress, progress_in
from clusterctl.node.run.files.run_paths import NodePaths, times_of
from clusterctl.node.run.operations.status import parse_times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Sequence, Tuple

    Rows = Dict[int, Dict[str, Any]]
    """By step, what a line of metrics.jsonl would have."""

STATE = "trainer_state.json"
LOG_BYTES, TIMES_BYTES = 4 << 20, 1 << 20
"""Of the end of the log, and of its times."""
APART_SECONDS = 2.0
"""Between steps whose times are used: a line's time is known to half a second only."""
_SLACK_SECONDS = 2.0


def other_metrics(paths: NodePaths, folders: Sequence[str]) -> Tuple[str, List[bytes]]:
    """Return the file that the losses are from, and lines as metrics.jsonl has them.

    Args:
        folders: where the Trainer of transformers may have written its state.
    """
    logs = paths.logs()[1:2]
    if not logs:
        return "", []
    log = os.path.join(paths.folder, logs[0])
    rows = _printed(log, read_json(paths.job).get("progress") or ())
    state = _trainer_state(paths, folders)
    history = read_json(state).get("log_history")
    for entry in history if isinstance(history, list) else ():
        # The last entry has the mean of all losses.
        if isinstance(entry, dict) and "train_runtime" not in entry:
            step = entry.get("step")
            if isinstance(step, int):
                told = {name: entry[name] for name in ("loss", "eval_loss") if name in entry}
                rows.setdefault(step, {}).update(told)
    last = max(rows, default=0)
    lines = [
        b"%s\n" % json.dumps({"step": step, **rows[step]}).encode()
        for step in sorted(rows)
        if rows[step] or step == last
    ]
    return (state or log) if lines else "", lines


def _trainer_state(paths: NodePaths, folders: Sequence[str]) -> str:
    """Return the newest state that was written while the run lived; empty: there is none."""
    names = [
        os.path.join(folder, each, STATE)
        for folder in folders
        for each in ("", *(n for n in list_folder(folder) if n.startswith("checkpoint-")))
    ]
    began, ended = (modified(path) for path in (paths.job, paths.end))
    found = [(modified(name), name) for name in names]
    until = ended + _SLACK_SECONDS if ended else float("inf")
    return max(
        ((at, name) for at, name in found if began - _SLACK_SECONDS <= at <= until),
        default=(0.0, ""),
    )[1]


def _printed(log: str, patterns: Sequence[str]) -> Rows:
    """Return the steps that a rank printed; one that was done again counts once."""
    found = list(_told(log, patterns))
    # An evaluation has a bar of its own, with fewer steps.
    longest = max((told.get("total") or 0 for _, told in found), default=0)
    rows: Rows = {}
    waiting: Dict[str, Any] = {}
    ends: List[int] = []
    for end, told in found:
        if told.get("total") not in (None, longest):
            continue
        values = {"loss": told.get("loss"), "tok_s": told.get("tokens_per_s")}
        waiting.update((name, value) for name, value in values.items() if value is not None)
        if told.get("step") is None:
            continue  # of the step that the next bar shows
        step = int(told["step"])
        while rows and next(reversed(rows)) > step:
            rows.popitem()
            ends.pop()
        if step not in rows:
            ends.append(end)
        rows.setdefault(step, {}).update(waiting)
        waiting = {}
    steps, last = list(rows), 0.0
    if steps:
        rows[steps[-1]].update(waiting)
    for time, size in parse_times(read_end(times_of(log), TIMES_BYTES), cut=False):
        at = bisect_right(ends, size) - 1
        if at >= 0 and time >= last + APART_SECONDS and "time" not in rows[steps[at]]:
            rows[steps[at]]["time"] = last = time
    return rows


def _told(log: str, patterns: Sequence[str]) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """Yield where each line of progress ends, and what it tells."""
    at, data = find_end(log, LOG_BYTES)
    first = first_epoch(data.decode("ascii", "replace"))
    for line in data.replace(b"\r", b"\n").split(b"\n"):
        at += len(line) + 1
        # Tokens of a GPU cannot be compared with those of a run.
        of_gpu = b"tps" in line or b"per_gpu" in line
        told = {**(progress_in(line, first) or {}), **({"tokens_per_s": None} if of_gpu else {})}
        if b"train_runtime" in line:
            told["loss"] = None  # the mean of all
        told.update(own_progress(patterns, line))
        if any(value is not None for value in told.values()):
            yield at, told
