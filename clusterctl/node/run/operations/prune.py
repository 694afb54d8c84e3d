"""The operation `prune`: deletes what is kept of runs that are over, and of no other."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, List

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.node_run import LocalRun
from clusterctl.node.run.processes.boot import boot_id
from clusterctl.wire import Message


def prune(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Delete this node's folders of runs.

    Args:
        args: `cluster`, `node`, perhaps `state`; `runs`: their ids.

    Returns:
        `removed`: the runs of which nothing is here any more; `kept`: run → why it is.
    """
    del body, channel
    removed: List[str] = []
    kept: Dict[str, str] = {}
    for run in args["runs"]:
        why = delete_run_folder({**args, "run": run})
        if why:
            kept[run] = why
        else:
            removed.append(run)
    return Message({"removed": removed, "kept": kept})


def delete_run_folder(args: Dict[str, Any]) -> str:
    """Delete a run's folder; return why it was not deleted, empty if it was."""
    if os.path.basename(args["run"]) != args["run"] or args["run"] in ("", ".", ".."):
        return "its name is none of a run"
    paths = NodePaths.of(args)
    if not os.path.lexists(paths.folder):
        return ""
    why = paths.ownership_problem() or why_needed(LocalRun.find(args))
    if why:
        return why
    ray_folder.remove_short_name(paths.folder)
    try:
        shutil.rmtree(paths.folder)
    except OSError as error:
        return "%s: %s" % (error.filename, error.strerror)
    with contextlib.suppress(OSError):  # another node's folder is in it, if nodes share it
        os.rmdir(os.path.dirname(paths.folder))
    return ""


def why_needed(node_run: LocalRun) -> str:
    """Return why a run's folder must stay; empty if the run is over, as after a reboot."""
    began_in = node_run.job.get("boot_id")
    rebooted = began_in is not None and began_in != boot_id()
    if node_run.job and not rebooted and not os.path.exists(node_run.paths.end):
        return "it has not ended here"
    return "something of it is left here" if node_run.holds_lock() or node_run.find_all() else ""
