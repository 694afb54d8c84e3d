"""What a node knows once a failed attempt is over on it; all of it is found out in a child."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from clusterctl.node.peer_link.restart_messages import LINE_CHARACTERS, LINES
from clusterctl.node.restart.node_check import look_around
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.progress import run_progress
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, RANK_LOG
from clusterctl.node.supervisor.shutdown import Cause

LOG_TAIL = 65536


class Failed(NamedTuple):
    """A rank or the launcher of this node that failed by itself."""

    at: float
    """By the master's clock."""
    cause: Cause


def look(
    job: NodeJob, record: RunFiles, failed: List[Failed], *, began: float, oom: bool
) -> Dict[str, Any]:
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
        **look_around(job, began),
    }


def _last_lines(record: RunFiles, rank: Optional[int]) -> List[str]:
    """Return what a rank, or the launcher, printed last in this attempt."""
    log = LAUNCHER_LOG if rank is None else RANK_LOG % rank
    text = record.log_end(log, LOG_TAIL).decode("utf-8", "replace")
    return [line[:LINE_CHARACTERS] for line in text.splitlines()[-LINES:]]
