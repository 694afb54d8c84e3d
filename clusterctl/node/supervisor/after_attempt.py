"""What a node knows once a failed attempt is over on it; all of it is found out in a child."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.checkpoints.checkpoints import checkpoints
from clusterctl.node.peer_link.restart_messages import LINE_CHARACTERS, LINES
from clusterctl.node.restart.agreement import tell_sight
from clusterctl.node.restart.node_check import node_check
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.progress import run_progress
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, RANK_LOG
from clusterctl.node.supervisor.shutdown import Cause

LOG_TAIL = 65536
SILENCE_SECONDS = 15.0
"""How long the folder of the checkpoints may not answer."""


class Failed(NamedTuple):
    """A rank or the launcher of this node that failed by itself."""

    at: float
    cause: Cause


def look(job: NodeJob, record: RunFiles, failed: List[Failed], *, oom: bool) -> Dict[str, Any]:
    """Return what the master needs to know, as `parse_after` reads it."""
    progress = run_progress(record.paths) or {}
    return {
        "failures": [
            {
                "at": one.at,
                "rank": one.cause.rank,
                "exit_code": one.cause.exit_code,
                "signal": one.cause.killed_by,
                "oom": oom,
                "lines": _last_lines(record, one.cause.rank),
            }
            for one in failed
        ],
        "step": progress.get("step"),
        "sight": _sight(job),
        "check": node_check(job, record.paths),
    }


def _last_lines(record: RunFiles, rank: Optional[int]) -> List[str]:
    """Return what a rank, or the launcher, printed last in this attempt."""
    log = LAUNCHER_LOG if rank is None else RANK_LOG % rank
    text = record.log_end(log, LOG_TAIL).decode("utf-8", "replace")
    return [line[:LINE_CHARACTERS] for line in text.splitlines()[-LINES:]]


def _sight(job: NodeJob) -> Dict[str, Any]:
    """Return the checkpoints that this node sees; their structure is read, not all content."""
    workdir, folder = job["workdir"], job.get("checkpoints")
    if not folder:
        return {"workdir": workdir, "checkpoints": []}
    asked = {
        "workdir": workdir,
        "path": folder,
        "world_size": job["world_size"],
        "silence": SILENCE_SECONDS,
        **{name: job[name] for name in ("cluster", "run", "node", "state")},
    }
    with open(os.devnull, "rb", buffering=0) as nothing:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            found = checkpoints(asked, b"", CallChannel(nothing, nowhere)).head["candidates"]
        except OperationError as error:
            if error.kind == "missing":  # none was written
                return {"workdir": workdir, "checkpoints": []}
            return {"workdir": workdir, "checkpoints": [], "problem": str(error)[:LINE_CHARACTERS]}
        finally:
            os.close(nowhere)
    return tell_sight(workdir, found)
