"""Notices that a node's ranks train alone: none has a connection to another node's.

Ranks may be at the run's store and still make a world of their own, such as with `rank=0,
world_size=1` from a variable that only Slurm sets. Ranks of one world are connected as soon as they
communicate.
"""

from __future__ import annotations

import time
from typing import Iterable, List, Optional

from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.progress import run_progress
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes.containers import started_by_client
from clusterctl.node.supervisor.ranks.rank_state import Rank
from clusterctl.node.supervisor.worlds import judge_world as worlds
from clusterctl.node.supervisor.worlds.rendezvous_sockets import Member

BRIEF_SECONDS = 5.0
"""Who lives shorter may have been connected between two looks, or trains nothing."""
STEP_SECONDS = 30.0
"""Ranks that print steps for so long have communicated."""
_LOOK_SECONDS = 5.0
"""Between two looks at what is printed."""


class LoneNode:
    """Whether a node's ranks have met another node's."""

    def __init__(self, job: NodeJob, record: RunFiles) -> None:
        self._job, self._record = job, record
        # In a container that a daemon starts, and of a driver of Ray, not all can be seen.
        seen = job["launcher"] != "ray" and not started_by_client(job)
        self.pending = seen and job["nnodes"] > 1 and job["procs"] > 0
        """It should meet another node, and has not; that was not told yet."""
        self.alone = ""
        """The event that told it."""
        self._next_look = 0.0
        self._stepped: Optional[float] = None

    def see(self, members: List[Member], meeting: worlds.Meeting) -> None:
        """Note whether one of these processes of a rank is connected to another node."""
        if self.pending and worlds.has_met(members, meeting):
            self.pending = False
            self._record.event("node-met")

    def watch_steps(self) -> None:
        """Tell it once, while it trains: the steps that it prints are those of a lone world."""
        now = time.monotonic()
        if not self.pending or now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        progress = run_progress(self._record.paths, self._job.get("progress") or ()) or {}
        if progress.get("step") is None:
            return
        self._stepped = now if self._stepped is None else self._stepped
        if now - self._stepped >= STEP_SECONDS:
            self._tell("trains-alone")

    def over(self, ranks: Iterable[Rank]) -> None:
        """Tell it at the good end of these ranks, unless they were too brief."""
        lived = max(((r.ended or 0.0) - (r.began or 0.0) for r in ranks if r.began), default=0.0)
        job = self._job
        # A launcher that was called and not seen has failed, whatever its script made of that.
        called = lived > 0 and worlds.calls_launcher(job["argv"], job["workdir"])
        if self.pending and (lived > BRIEF_SECONDS or called):
            self._tell("never-met")

    def _tell(self, kind: str) -> None:
        self.pending, self.alone = False, kind
        where = self._job["master"]
        self._record.event(kind, master="%s:%d" % (where["address"], where["port"]))
