"""The operation `note-runs`: keeps which runs on other nodes may write this one's checkpoints.

Without the controller, a restart would take for its own what another run wrote meanwhile to storage
that their nodes share.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.run_files import write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.wire import Message

MOST_KEPT = 16


def note_runs(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Add runs to those that are kept for a run.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `others`: runs, each with `run` and
            `began` by the controller's clock; `now`: its time.

    Returns:
        `noted`: the run has a folder here.
    """
    del body, channel
    paths = NodePaths.of(args)
    if not os.path.isfile(paths.job):
        return Message({"noted": False})
    ahead = time.time() - float(args["now"])
    kept = {one["run"]: one for one in read_json(paths.others).get("others", [])}
    for one in args["others"]:
        kept[one["run"]] = {"run": one["run"], "began": float(one["began"]) + ahead}
    write_json(paths.others, {"schema": 1, "others": list(kept.values())[-MOST_KEPT:]})
    return Message({"noted": True})
