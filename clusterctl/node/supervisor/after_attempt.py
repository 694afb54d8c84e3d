"""What a node knows once a failed attempt is over on it; all of it is found out in a child."""

from __future__ import annotations

import os
from typing import Any, Collection, Dict, List, Optional, Tuple

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.checkpoints.checkpoints import checkpoints
from clusterctl.node.file_io import read_end, read_json
from clusterctl.node.peer_link.restart_messages import (
    LINE_CHARACTERS,
    LINES,
    MOST_WITHOUT,
    WHY_LIMIT,
)
from clusterctl.node.printed_error import FATAL
from clusterctl.node.probe.connect import connect_to
from clusterctl.node.restart.agreement import tell_sight
from clusterctl.node.restart.node_check import node_check
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.progress import run_progress
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, RANK_LOG
from clusterctl.node.supervisor.shutdown import Cause

LOG_TAIL = 65536
PEERS_SECONDS, MOST_PEERS_SECONDS = 6.0, 60.0
"""How long another node may take to answer: the kernel asks after 0, 1, 3, 7 and 15 s.

A network that is silent for a while must not put out a node, as it would not while ranks run: for
so long as `lost_after`, within these bounds.
"""
PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
"""The ports that the kernel chooses for ranks, so no firewall of the cluster drops them. Where one
is free, the kernel refuses, which tells as much as an answer."""
NO_ANSWER = ("timeout", "unreachable")


def look(
    job: NodeJob,
    record: RunFiles,
    failed: List[Tuple[float, Cause]],
    lost: Collection[str],
    *,
    oom: bool,
) -> Dict[str, Any]:
    """Return what the master needs to know, as `parse_after` reads it.

    `failed` are the ranks, or the launcher, that failed here by themselves, and when. `lost` are
    nodes that fell silent.
    """
    progress = run_progress(record.paths, job.get("progress") or ()) or {}
    return {
        "failures": [
            {
                "at": at,
                "rank": cause.rank,
                "exit_code": cause.exit_code,
                "signal": cause.killed_by,
                "oom": oom,
                "lines": _last_lines(record, cause.rank),
            }
            for at, cause in failed
        ],
        "step": progress.get("step"),
        "sight": _sight(job, record),
        "check": {
            name: why and why[:WHY_LIMIT] for name, why in node_check(job, record.paths).items()
        },
        "unreached": unreached(job, lost),
    }


def unreached(job: NodeJob, lost: Collection[str]) -> List[str]:
    """Return the other workers that do not answer this one; each of them reaches the master."""
    node, seats = job["node"], (job.get("lineup") or {"seats": []})["seats"]
    others = set(job["workers"]) - {node, *lost} if node in job["workers"] else set()
    try:
        high_port = int(read_end(PORTS, 64).split()[-1])
    except (ValueError, IndexError):
        return []
    known = {"port": high_port, "source": job["address"]}
    targets = [{**one, **known} for one in seats if one["node"] in others]
    seconds = min(max(PEERS_SECONDS, job["link"]["lost_after"] + 1.0), MOST_PEERS_SECONDS)
    found = connect_to(targets, "", seconds)
    return [one["node"] for one in found if one["state"] in NO_ANSWER][:MOST_WITHOUT]


def _last_lines(record: RunFiles, rank: Optional[int]) -> List[str]:
    """Return what a rank, or the launcher, printed last in this attempt."""
    log = LAUNCHER_LOG if rank is None else RANK_LOG % rank
    text = record.log_end(log, LOG_TAIL).decode("utf-8", "replace")
    lines = [line[:LINE_CHARACTERS] for line in text.splitlines()]
    # The stacks of many threads follow the line that says what happened.
    fatal = [line for line in lines[:-LINES] if FATAL.match(line)][-1:]
    return [*fatal, *lines[len(fatal) - LINES :]]


def _sight(job: NodeJob, record: RunFiles) -> Dict[str, Any]:
    """Return the checkpoints that this node sees; their structure is read, not all content."""
    workdir, folder = job["workdir"], job.get("checkpoints")
    seen: Dict[str, Any] = {"workdir": workdir, "checkpoints": []}
    if not folder:
        return seen
    asked: Dict[str, Any] = {
        name: job.get(name) for name in ("cluster", "run", "node", "state", "world_size")
    }
    # How long they live is not known here.
    others = read_json(record.paths.others).get("others", [])
    asked["others"] = [{**one, "ended": None, "live": True} for one in others]
    with open(os.devnull, "r+b", buffering=0) as nobody:  # hears how far it is
        try:
            answer = checkpoints(
                {**asked, "workdir": workdir, "path": folder},
                b"",
                CallChannel(nobody, nobody.fileno()),
            )
        except OperationError as error:
            # Missing: none was written.
            problem = "" if error.kind == "missing" else str(error)[:LINE_CHARACTERS]
            return {**seen, "problem": problem}
    return tell_sight(workdir, answer.head["candidates"])
