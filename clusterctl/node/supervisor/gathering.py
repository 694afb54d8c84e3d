"""Watches the ranks of one node until each has reached the rendezvous that was planned."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Dict, List, Optional

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run import processes
from clusterctl.node.run.containers import started_by_client
from clusterctl.node.run.node_job import NodeJob
from clusterctl.node.run.run_files import RunFiles
from clusterctl.node.supervisor import worlds
from clusterctl.node.supervisor.rank_state import Rank
from clusterctl.node.supervisor.rendezvous_sockets import Member, look

POLL_SECONDS = (0.25, 1.0, 5.0)
"""How often to look who has joined: at first, then while most gather, and after a while."""
MOST_GATHER = 120.0
BRIEF_SECONDS = 2.0
"""Who lives shorter may have joined between two looks, or trains nothing."""


class Gathering:
    """Who of a node's ranks has joined, and who trains elsewhere."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        ranks: Dict[int, Rank],
        on_other_world: Callable[[Rank, str], None],
    ) -> None:
        """Watch `ranks`, by local rank; `on_other_world` gets one that meets elsewhere, and how."""
        self._loop, self._job, self._record, self._ranks = loop, job, record, ranks
        self._on_other_world = on_other_world
        self._poll = POLL_SECONDS[0]
        self._began = time.monotonic()
        self.launcher: Optional[int] = None
        """The launcher's pid, while it runs."""
        self.launcher_joined: Optional[bool] = False if job["launcher_argv"] else None
        """The launcher has reached the rendezvous; None where there is none."""

    def watch(self) -> None:
        """Look now and then, until everybody has joined."""
        with contextlib.suppress(OSError):  # nobody can look now; the next time will show it
            self._look()
        if self.launcher_joined is not False and all(r.joined for r in self._ranks.values()):
            return
        late = time.monotonic() - self._began > MOST_GATHER
        self._poll = min(self._poll * 1.2, POLL_SECONDS[2 if late else 1])
        self._loop.call_later(self._poll, self.watch)

    def has_joined(self, rank: Rank) -> None:
        """Note that a rank has joined."""
        rank.joined = True
        self._record.event("rank-joined", rank=rank.rank)

    def nobody_joined(self) -> bool:
        """Tell whether ranks ran for a while and none was seen at the rendezvous of several nodes.

        In a container that a daemon starts, and of a driver of Ray, not all can be seen.
        """
        if self._job["nnodes"] == 1 or self._job["launcher"] == "ray":
            return False
        ranks = self._ranks.values()
        lived = max(((r.ended or 0.0) - (r.began or 0.0) for r in ranks if r.began), default=0.0)
        seen = any(rank.joined for rank in ranks) or started_by_client(self._job)
        return lived > BRIEF_SECONDS and not seen

    def problem(self) -> str:
        """Say what keeps this node's ranks from gathering; empty for nothing that can be seen."""
        where = self._meeting.shown
        if self.launcher is not None:
            started = all(rank.state != "starting" for rank in self._ranks.values())
            if self._ranks and started:
                return ""
            waits = "waits at %s for another" if self.launcher_joined else "does not reach %s"
            return "its launcher " + waits % where
        try:
            waiting = self._members(self._not_joined())
        except OSError:
            return ""
        for number, members in sorted(waiting.items()):
            launcher = worlds.waiting_launcher(members)
            if launcher:
                return "the %s of rank %d does not reach %s" % (launcher, number, where)
        silent = [n for n, members in waiting.items() if worlds.connecting(members, self._meeting)]
        numbers = ", ".join(map(str, sorted(silent)))
        return "rank %s does not reach %s" % (numbers, where) if numbers else ""

    @property
    def _meeting(self) -> worlds.Meeting:
        return worlds.Meeting.of(self._job)

    def _look(self) -> None:
        meeting = self._meeting
        if self.launcher is not None and not self.launcher_joined:
            self.launcher_joined = worlds.has_joined(look([self.launcher])[self.launcher], meeting)
            if self.launcher_joined:
                self._record.event("launcher-joined")
        waiting = self._not_joined()
        by_number = {rank.rank: rank for rank in waiting.values()}
        for number, members in self._members(waiting).items():
            rank = by_number[number]
            other = worlds.other_world(members, meeting)
            if other is not None:
                line = worlds.script_line(members, other.pid, self._job["workdir"])
                words = "expected the run's at %s, found %s" % (meeting.shown, other.found)
                self._on_other_world(rank, "%s (%s)" % (words, line) if line else words)
            elif not rank.joined and worlds.has_joined(members, meeting):
                self.has_joined(rank)

    def _not_joined(self) -> Dict[int, Rank]:
        waiting = {r.pid or 0: r for r in self._ranks.values() if r.running and not r.joined}
        return {**waiting, **(self._in_containers(waiting) if waiting else {})}

    def _members(self, waiting: Dict[int, Rank]) -> Dict[int, List[Member]]:
        """Return the processes of these ranks by rank: in a container a rank has two roots."""
        found: Dict[int, List[Member]] = {}
        for pid, members in look(waiting).items() if waiting else ():
            found.setdefault(waiting[pid].rank, []).extend(members)
        return found

    def _in_containers(self, waiting: Dict[int, Rank]) -> Dict[int, Rank]:
        """Return the processes of these ranks in containers of a daemon: no children of ours."""
        if not started_by_client(self._job):
            return {}
        marks = processes.run_environment(self._job["run"], self._job["node"])
        table = processes.process_table()
        return {
            pid: rank
            for rank in waiting.values()
            for pid in processes.with_environment([*marks, b"RANK=%d" % rank.rank], table)
        }
