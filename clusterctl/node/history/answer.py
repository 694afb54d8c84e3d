"""The operation `samples`: what a node and the ranks of a run on it used over time."""

from __future__ import annotations

import os

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.history.kept import read_rows
from clusterctl.node.history.machine import memory
from clusterctl.node.history.row import Row, at_most, series
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.operations.status import find_run
from clusterctl.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Sequence

MOST = 500


def samples(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer with the samples of a run: `cluster`, `run`, `node`, perhaps `state`.

    Args:
        args: also `since`, a time by the node's clock, and `most`: so many samples at most, each
            then the mean of several.
        body: unused.
        channel: unused.
    """
    del body
    paths = find_run(args)
    hand_over("samples", args, channel, paths)
    rows = read_rows(paths.samples, since=float(args.get("since") or 0.0))
    return Message({"samples": told(at_most(rows, int(args.get("most") or MOST)))})


def told(rows: Sequence[Row]) -> Dict[str, Any]:
    """Return rows as columns, with what does not change."""
    return {"cpus": os.cpu_count(), "memory_total_bytes": memory()[0], **series(rows)}
