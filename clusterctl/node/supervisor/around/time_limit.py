"""Ends a run whose time is over, on a clock that no one sets; only its master looks."""

from __future__ import annotations

from typing import Callable, Optional

from clusterctl.node.event_loop import MAX_WAIT_SECONDS, EventLoop
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.processes.boot import uptime
from clusterctl.node.supervisor.shutdown import Cause


def seconds_left(job: NodeJob) -> Optional[float]:
    """Return how long the run may still last, over all its attempts; None: there is no limit."""
    most, start = job.get("max_time"), job.get("up")
    return max(0.0, start + most - uptime()) if most and start is not None else None


def watch_time(loop: EventLoop, job: NodeJob, end: Callable[[Cause], None]) -> None:
    """End the run once its time is over, also between two attempts."""
    left = seconds_left(job)
    if left is None:
        return
    if left <= 0:
        reason = "its time is over (max_time: %g s)" % (job["max_time"] or 0.0)
        end(Cause(by="max-time", reason=reason, node=job["node"]))
        return
    # In steps: the loop's own clock stands still while the machine sleeps.
    loop.call_later(min(left, MAX_WAIT_SECONDS), lambda: watch_time(loop, job, end))
