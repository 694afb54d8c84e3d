"""The operations `samples` and `watch`: what a run used over time, and what it does now."""

from __future__ import annotations

import os
import time

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.file_io import read_json
from clusterctl.node.history.machine import memory
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.files.progress import run_progress
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import (
    find_run,
    last_printed_line,
    node_status,
    use_that_fell,
)
from clusterctl.node.run.operations.tail import is_over
from clusterctl.node.run.samples.kept import read_rows
from clusterctl.node.run.samples.row import Row, at_most, series
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Tuple

    Version = Tuple[int, int, int]

MOST = 500
LOOK_SECONDS = 0.5
"""Between two looks at the files of a run that is watched."""
PRINTED_SECONDS = 1.0
"""Between two readings of logs that grow."""
STATE_SECONDS = 5.0
"""How old its state may be if no file has changed: a supervisor may have been killed."""
FALL_SECONDS = 30.0
"""How often use is judged."""


def samples(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer with the samples of a run: `cluster`, `run`, `node`, perhaps `state`.

    Args:
        args: also `since`, a time by the node's clock, and `most`: so many samples at most, each
            then the mean of several.
    """
    del body
    paths = find_run(args)
    hand_over("samples", args, channel, paths)
    rows = read_rows(paths.samples, since=float(args.get("since") or 0.0))
    return Message({"samples": told(at_most(rows, int(args.get("most") or MOST)))})


def told(rows: Sequence[Row]) -> Dict[str, Any]:
    """Return rows as columns, with what does not change."""
    return {"cpus": os.cpu_count(), "memory_total_bytes": memory()[0], **series(rows)}


def watch(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Send how a run is on this node; with `follow` again whenever that changes, until it is over.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `follow`; `past`: of how many seconds the
            samples are sent first, if they are after `since`, a time by the node's clock.
        channel: gets `{"node", "samples"}`: as `status` answers it, without `usage`, and the
            samples that are new.
    """
    del body
    paths = find_run(args)
    hand_over("watch", args, channel, paths)
    since = time.time() - float(args.get("past") or 0.0)
    seen = _Watched(paths, max(since, float(args.get("since") or 0.0)))
    while args.get("follow") and not channel.disconnected:
        over = is_over(paths)  # before the last look: what is written until then is sent
        if seen.look():
            channel.send(Message(seen.answer()))
        if over:
            break
        time.sleep(LOOK_SECONDS)
    seen.look()
    return Message(seen.answer())


class _Watched:
    """What is known of a run here; only what has changed is read again."""

    def __init__(self, paths: NodePaths, since: float) -> None:
        self._paths = paths
        self._patterns = read_json(paths.job).get("progress") or ()
        self._sent = since
        self._rows: List[Row] = []
        """Those that were not sent."""
        self._versions: Dict[str, Version] = {}
        self._node: Dict[str, Any] = {}
        self._printed: Dict[str, Any] = {}
        self._fell: Dict[str, Any] = {}
        self._state_due = self._fall_due = self._printed_due = 0.0

    def look(self) -> bool:
        """Read what is new; tell whether anything is."""
        now, paths = time.monotonic(), self._paths
        files = (paths.supervisor, paths.end, paths.attempts)
        changed = self._changed(*files)
        state = changed or now >= self._state_due
        if state:
            before, self._node = self._node, node_status(paths)
            self._node["supervisor"]["beat_age_s"] = 0.0  # it alone would be news each time
            changed, self._state_due = before != self._node, now + STATE_SECONDS
        logs = [os.path.join(paths.folder, log) for log in paths.logs()]
        if now >= self._printed_due and self._changed(*logs):
            changed, self._printed_due = True, now + PRINTED_SECONDS - 0.1
            progress = run_progress(paths, self._patterns)
            last = last_printed_line(paths, self._patterns)
            self._printed = {"progress": progress, "last": last}
        if self._changed(paths.samples):
            self._rows += read_rows(paths.samples, since=self._sent)
            if self._rows:
                changed, self._sent = True, self._rows[-1].time
            if now >= self._fall_due:
                self._fell = {"fell": use_that_fell(paths)}
                self._fall_due = now + FALL_SECONDS
        return changed

    def answer(self) -> Dict[str, Any]:
        """Return what is known, and the samples that are new."""
        rows, self._rows = self._rows, []
        fell = self._fell if self._node.get("state") == "running" else {}
        return {"node": {**self._node, **self._printed, **fell}, "samples": told(rows)}

    def _changed(self, *files: str) -> bool:
        """Tell whether one of these files is another than at the last look."""
        found = {path: _version(path) for path in files}
        changed = any(self._versions.get(path) != version for path, version in found.items())
        self._versions.update(found)
        return changed


def _version(path: str) -> Version:
    try:
        seen = os.stat(path)
    except OSError:
        return 0, 0, 0
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
