"""Ends a start whose nodes or ranks do not gather in time."""

from __future__ import annotations

from typing import Callable, Optional, Sequence

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.worlds.gathering import Gathering

WAITERS_SECONDS, AGAIN_SECONDS = 2.0, 3.0


class StartWatch:
    """Looks once, when the time to gather is over."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        gathering: Gathering,
        peers: Peers,
        is_ending: Callable[[], bool],
        end: Callable[[Cause], None],
        on_problem: Callable[[], None],
    ) -> None:
        """Look at nothing yet; `end` ends the run everywhere, `on_problem` is called before."""
        self._loop, self._job, self._record = loop, job, record
        self._gathering, self._peers = gathering, peers
        self._is_ending, self._end, self._on_problem = is_ending, end, on_problem
        self._timer: Optional[Timer] = None

    def start(self, *, more: float = 0.0) -> None:
        """Look once the job's time is over, and so many seconds more; from now on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._job.get("start_timeout"):
            self._timer = self._loop.call_later(self._job["start_timeout"] + more, self._check)

    def _check(self) -> None:
        missing = sorted(self._peers.missing)
        self._peers.give_up_on_missing()
        if missing:
            self._end_start("not there: " + ", ".join(missing), missing)
        elif self._gathering.launcher_joined:
            # It waits for another: let that one say first what keeps it.
            self._loop.call_later(WAITERS_SECONDS, self._look)
        else:
            self._look()

    def _look(self, before: str = "") -> None:
        """End the start for a problem that two looks in a row find: one finds what just begins."""
        found = self._gathering.problem(others_over=self._peers.others_over)
        if found == before:
            self._end_start(found)
        elif not self._is_ending():
            if found and not before:
                self._on_problem()  # there is time now, and none once it ends
            self._loop.call_later(AGAIN_SECONDS, lambda: self._look(found))

    def _end_start(self, why: str, missing: Sequence[str] = ()) -> None:
        if not why or self._is_ending():
            return
        reason = "not gathered within %g s: %s" % (self._job["start_timeout"], why)
        self._end(Cause(by="start-timeout", reason=reason, node=self._job["node"]))
        for name in missing:
            message = "it was not there within %g s" % self._job["start_timeout"]
            self._record.event("start-timeout", peer=name, message=message)
