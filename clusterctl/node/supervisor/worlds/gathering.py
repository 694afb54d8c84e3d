"""Watches the ranks of one node until each has reached the rendezvous that was planned."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Dict, List, Optional, Sequence, Set

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.operations.status import last_printed_line
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.containers import started_by_client
from clusterctl.node.supervisor.ranks.rank_state import Rank
from clusterctl.node.supervisor.worlds import judge_world as worlds
from clusterctl.node.supervisor.worlds.lone_node import LoneNode
from clusterctl.node.supervisor.worlds.rendezvous_sockets import Member, look
from clusterctl.node.tcp_sockets import is_own

POLL, SLOW_POLL, LATE_POLL = 0.25, 1.0, 10.0
"""How often to look who has joined: while most gather, where a look costs much, and after a while.

A short job may be at the rendezvous for less than a second.
"""
LOOK_SHARE = 20
"""A look may take one in so many of the seconds."""
MOST_GATHER = 60.0
LINE_LIMIT = 200
"""Characters of the last line that the event of a late node quotes."""


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
        self._poll = POLL
        self._began = time.monotonic()
        self._launched = time.time()
        self._passed: Set[int] = set()
        """Launchers that meet elsewhere, and do not end the run for it."""
        self._lone = LoneNode(job, record)
        self.launcher: Optional[int] = None
        """The launcher's pid, while it runs."""
        self.launcher_joined: Optional[bool] = False if job["launcher_argv"] else None
        """The launcher has reached the rendezvous; None where there is none."""

    def watch(self) -> None:
        """Look now and then, until everybody has joined, and has met another node."""
        began = time.monotonic()
        with contextlib.suppress(OSError):  # it cannot be checked now; the next time will show it
            self._look()
        joined = self.launcher_joined is not False and all(r.joined for r in self._ranks.values())
        if joined:
            if not self._lone.pending:
                return
            self._lone.watch_steps()
        late = self._all_started and time.monotonic() - self._began > MOST_GATHER
        if late:
            self._poll = min(self._poll * 1.2, LATE_POLL)
        else:
            self._poll = max(POLL, min(SLOW_POLL, LOOK_SHARE * (time.monotonic() - began)))
        self._loop.call_later(self._poll, self.watch)

    def has_joined(self, rank: Rank) -> None:
        """Note that a rank has joined."""
        rank.joined = True
        self._record.event("rank-joined", rank=rank.rank)

    @property
    def alone(self) -> str:
        """The event that told that no rank is connected to another node; empty: none did."""
        return self._lone.alone

    def over(self) -> None:
        """Tell at a good end whether this node's ranks were never connected to another node's."""
        self._lone.over(self._ranks.values())

    def problem(self, *, others_over: bool) -> str:
        """Say what keeps this node's ranks from gathering; empty for nothing that can be seen.

        A launcher that a script started may wait for a script that is still busy on another node.
        It waits in vain if its packets are lost, or if the run is over on all others.
        """
        where = self._meeting.shown
        if self.launcher is not None:
            if self._ranks and self._all_started:
                return ""
            waits = "waits at %s for another" if self.launcher_joined else "does not reach %s"
            return "its launcher " + waits % where
        joined_too = others_over and self._job["nnodes"] > 1
        try:
            waiting = self._members(self._watched(joined_too=joined_too))
        except OSError:
            return ""
        silent = [n for n, members in waiting.items() if worlds.connecting(members, self._meeting)]
        for number, members in sorted(waiting.items()):
            pid, address = worlds.first_store(members)
            if address and not is_own(address):
                line = worlds.script_line(members, pid, self._job["workdir"])
                return "rank %d waits at %s, which is no address of this node (%s)" % (
                    number, address, line,
                )  # fmt: skip
        for number in sorted(waiting if others_over else silent):
            launcher = worlds.waiting_launcher(waiting[number])
            if launcher:
                waits = "does not reach %s" if number in silent else "waits at %s for another"
                return "the %s of rank %d %s" % (launcher, number, waits % where)
        numbers = ", ".join(map(str, sorted(silent)))
        return "rank %s does not reach %s" % (numbers, where) if numbers else ""

    def lateness(self) -> str:
        """Say what keeps this node's launcher or ranks from the rendezvous; empty: nothing.

        Unlike `problem` it tells of those that are only busy, too: the start is over.
        """
        waits = self.launcher is not None and not (self._ranks and self._all_started)
        if waits and self.launcher_joined:
            return ""
        try:
            return self._launcher_lateness() if waits else self._ranks_lateness()
        except OSError:
            return ""

    def _launcher_lateness(self) -> str:
        assert self.launcher is not None
        members = look([self.launcher])[self.launcher]
        tries = worlds.connecting(members, self._meeting)
        return self._describe("its launcher", self._launched, (), tries=tries)

    def _ranks_lateness(self) -> str:
        watched = self._members(self._watched())
        silent = [n for n, found in watched.items() if worlds.connecting(found, self._meeting)]
        late = [one for one in self._ranks.values() if one.rank in (silent or watched)]
        late = late or [one for one in self._ranks.values() if one.state == "starting"]
        ranks = sorted(one.rank for one in late)
        who = "rank " + ", ".join(map(str, ranks))
        began = min((one.began for one in late if one.began), default=0.0)
        return self._describe(who, began, ranks, tries=bool(silent)) if late else ""

    def _describe(self, who: str, began: float, ranks: Sequence[int], *, tries: bool) -> str:
        where = self._meeting.shown
        if tries:
            return "%s does not reach %s" % (who, where)
        if not began:
            return "%s has not started" % who
        ran = max(0.0, time.time() - began)
        words = "%s has run for %.0f s without connecting to %s" % (who, ran, where)
        last = last_printed_line(self._record.paths) or {}
        if not last.get("line") or (ranks and last["rank"] not in ranks):
            return words
        return "%s; last line: %s" % (words, last["line"][:LINE_LIMIT])

    @property
    def _all_started(self) -> bool:
        return all(rank.state != "starting" for rank in self._ranks.values())

    @property
    def _meeting(self) -> worlds.Meeting:
        return worlds.Meeting.of(self._job)

    def _look(self) -> None:
        meeting = self._meeting
        if self.launcher is not None and not self.launcher_joined:
            self.launcher_joined = worlds.has_joined(look([self.launcher])[self.launcher], meeting)
            if self.launcher_joined:
                self._record.event("launcher-joined")
        waiting = self._watched(joined_too=self._lone.pending)
        by_number = {rank.rank: rank for rank in waiting.values()}
        for number, members in self._members(waiting).items():
            rank = by_number[number]
            self._lone.see(members, meeting)
            if rank.joined:
                continue
            other = worlds.other_world(members, meeting, self._passed)
            if other is not None and self._ends(members, other):
                self._on_other_world(rank, self._found(members, other))
            elif worlds.has_joined(members, meeting):
                self.has_joined(rank)

    def _ends(self, members: List[Member], other: worlds.OtherWorld) -> bool:
        """Tell whether a world elsewhere is sure to be the training, and was not forced."""
        forced = bool(self._job.get("force"))
        if not forced and not worlds.more_to_come(members, other.pid, self._job["workdir"]):
            return True
        self._passed.add(other.pid)
        if forced:
            self._record.event("other-world", message=self._found(members, other))
        return False

    def _found(self, members: List[Member], other: worlds.OtherWorld) -> str:
        """Return what was expected and what was found, and where the script starts it."""
        line = worlds.script_line(members, other.pid, self._job["workdir"])
        words = "expected the run's at %s, found %s" % (self._meeting.shown, other.found)
        return "%s (%s)" % (words, line) if line else words

    def _watched(self, *, joined_too: bool = False) -> Dict[int, Rank]:
        running = [rank for rank in self._ranks.values() if rank.running]
        waiting = {rank.pid or 0: rank for rank in running if joined_too or not rank.joined}
        return {**waiting, **(self._in_containers(waiting) if waiting else {})}

    def _members(self, waiting: Dict[int, Rank]) -> Dict[int, List[Member]]:
        """Return the processes of these ranks by rank: in a container a rank has two roots."""
        found: Dict[int, List[Member]] = {}
        for pid, members in look(waiting).items() if waiting else ():
            found.setdefault(waiting[pid].rank, []).extend(members)
        return found

    def _in_containers(self, waiting: Dict[int, Rank]) -> Dict[int, Rank]:
        """Return the processes of these ranks in containers of a daemon, which are not children."""
        if not started_by_client(self._job):
            return {}
        marks = processes.run_environment(self._job["run"], self._job["node"])
        table = processes.process_table()
        return {
            pid: rank
            for rank in waiting.values()
            for pid in processes.with_environment([*marks, b"RANK=%d" % rank.rank], table)
        }
