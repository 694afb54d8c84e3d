"""Supervises a run on one node: starts it, and decides what ends it by all that is reported."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any, Dict, List, Optional, Sequence

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.history.sampler import Sampler
from clusterctl.node.peer_link.messages import ORDERED, REASON_LIMIT, PeerMessage
from clusterctl.node.peer_link.peers import connect
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.boot import boot_id
from clusterctl.node.run_lock import PeerProcess
from clusterctl.node.supervisor.around.commands import AroundCommands
from clusterctl.node.supervisor.around.folder_note import FolderNote
from clusterctl.node.supervisor.around.notifier import Notifier
from clusterctl.node.supervisor.around.time_limit import seconds_left, watch_time
from clusterctl.node.supervisor.ending import Ending
from clusterctl.node.supervisor.housekeeping import Housekeeping
from clusterctl.node.supervisor.master_attempt import MasterAttempt
from clusterctl.node.supervisor.members import Members
from clusterctl.node.supervisor.next_attempt import Attempt, NextAttempt
from clusterctl.node.supervisor.ranks.node_ranks import Ranks
from clusterctl.node.supervisor.ranks.spawn import Spawner
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.watch.hang_judge import HangJudge
from clusterctl.node.supervisor.watch.hang_watch import HangWatch
from clusterctl.node.supervisor.watch.start_watch import StartWatch

BEGIN_POLL = 0.05
LEFT_SECONDS = 3.0
"""How long the ranks of an elastic run have to notice a lost node by closed connections."""


class Supervisor:
    """A run on one node. Everything happens in its event loop's one thread.

    Its parts know nothing of each other. The ranks report to it (`RankEvents`), the link reports
    what happens on other nodes (`PeerEvents`), the control socket what is asked here.
    """

    def __init__(
        self,
        job: NodeJob,
        secrets: Dict[str, Any],
        spawner: Spawner,
        record: RunFiles,
        guard: Sequence[int],
    ) -> None:
        """Take the job over; `guard` is the key of the process that finishes if this one dies.

        Raises:
            OSError: the link's address cannot be listened on.
        """
        self.loop = loop = EventLoop()
        self._job, self._record = job, record
        self.began = job.get("began") or time.time()
        self._key = processes.key_of(os.getpid())
        # This node, then the others.
        self._ranks = Ranks(loop, job, spawner, record, self)
        self._hang = HangWatch(loop, job, record, self._ranks.snapshots, self._save)
        gpus, rdma = self._hang.gpus.latest, lambda: self._hang.rdma
        sampler = Sampler(record.paths.samples, self._ranks.snapshots, gpus, rdma)
        scans = self._hang.scan, sampler.scan
        self._housekeeping = Housekeeping(loop, job, record, self._ranks, guard, scans)
        self._peers = connect(loop, job, secrets, self)
        self._around = AroundCommands(loop, job, spawner, record, self._ranks.watch_child)
        self._members = Members(loop, job, self._peers, secrets["token"], self._save)
        env = spawner.environment
        self._notify = Notifier(
            loop, job, record, secrets, env, lambda: self._members.ranked, self.began
        )
        attempt = Attempt(
            loop, job, record, self._peers, self._housekeeping.guard, self._save, self._notify.waits
        )
        self._next = NextAttempt(attempt) if job["node_rank"] else MasterAttempt(attempt)
        self._note = FolderNote(loop, job, lambda: self.began)
        parts = self._ranks, self._hang, self._next, self._around, self._notify, self._note
        self._ending = Ending(attempt, spawner, *parts)
        own, is_ending, end = job["node"], self._is_ending, self._end_everywhere
        self._judge = HangJudge(loop, own, self._hang, self._peers, self.life, is_ending, end)
        watched = self._ranks.gathering, self._peers
        keep = self._hang.keep_dump
        self._start_watch = StartWatch(loop, job, record, *watched, is_ending, end, keep)

    @property
    def again(self) -> Optional[PeerMessage]:
        """The next attempt, which begins once this process has ended; None: there is none."""
        return None if self._next.why_not else self._next.again

    @property
    def link_port(self) -> int:
        """Where the master's supervisor listens for the others; 0 on the others."""
        return self._peers.port

    def start(self) -> None:
        """Start the launcher or the ranks.

        Raises:
            OSError: they cannot be started.
        """
        keys = ("attempt", "env_init_s", "env_init_said")
        told = {key: value for key, value in self._job.items() if key in keys}
        self._record.event("supervisor-up", pid=os.getpid(), link_port=self.link_port, **told)
        if not self._job.get("before"):
            self._ranks.start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.loop.on_signal(number, partial(self._on_signal, number))
        self._housekeeping.start()
        before = self._job.get("before")
        self._watch_start(more=self._around.limit if before else 0.0)
        if before:
            self._around.before(self._before_ended)
        if self._job["node_rank"] == 0:
            self._judge.start()
            self._note.start()
            self._notify.start(self._is_up, lambda: self._hang.alarm)
            watch_time(self.loop, self._job, self._end_everywhere)

    def _watch_start(self, *, more: float = 0.0) -> None:
        """Watch how long the start takes, from now on; a node that stands by starts nothing."""
        if not self._job.get("standby"):
            self._start_watch.start(more=more)

    def _before_ended(self, why: str) -> None:
        """Start the ranks once the job's first command has ended well on all nodes."""
        if self._ending.begun:
            return
        if why:
            self._record.event("before-failed", message=why)
            self._end_everywhere(Cause("before", why, self._job["node"]))
            return
        self._peers.tell_ready()
        self._begin()

    def _begin(self) -> None:
        if self._ending.begun:
            return
        if not self._peers.all_ready:
            self.loop.call_later(BEGIN_POLL, self._begin)
            return
        self._peers.send_begin()
        self._record.event("begin")
        self._watch_start()
        try:
            self._ranks.start()
        except OSError as error:
            reason = "cannot start a process: %s" % error.strerror
            self._end_everywhere(Cause("supervisor", reason, self._job["node"]))

    def run(self) -> None:
        """Handle events until the run is over here."""
        while not self._ending.over:
            self.loop.run_once()

    def snapshot(self) -> Dict[str, Any]:
        """Return what is known, as it is kept in supervisor.json and answered to `status`."""
        pid, start = self._key
        return {
            "schema": 1,
            "pid": pid,
            "start": start,
            "guard": self._housekeeping.guard,
            "boot_id": boot_id(),
            "lock": self._job["lock"],
            "cgroup": self._job.get("cgroup", ""),
            "link_port": self.link_port,
            "stop_file": self._ending.stop_file,
            "state": self._state(),
            "began": self.began,
            "ranks": self._ranks.snapshots(),
            "launcher_joined": self._ranks.gathering.launcher_joined,
            "alone": self._ranks.gathering.alone,
            "seconds_left": None if self._job["node_rank"] else seconds_left(self._job),
            "nodes": self._members.nodes if self._job["node_rank"] == 0 else None,
            "elsewhere": self._housekeeping.elsewhere,
            **self._hang.account,
            **self._next.account,
            "notify_problem": self._notify.problem,
            "end": self._ending.account or None,
        }

    def handle_request(  # noqa: PLR0911  (one for each question)
        self, request: Dict[str, Any], peer: PeerProcess
    ) -> Dict[str, Any]:
        """Answer a request that came through the control socket."""
        ask, own = request.get("ask"), (self._job["run"], self._job["node"])
        if (request.get("run"), request.get("node")) != own:
            return {"error": "this is run %s on node %s, not the one that was asked for" % own}
        if ask == "rank":
            answer = self._ranks.report(request, peer.pid)
            self._save()
            return answer
        if ask == "state":
            return {"account": self.snapshot()}
        if ask == "stop":
            self.stop(request)
            return {}
        if ask == "dump":
            return self._hang.dump(request["order"])
        if ask == "join":
            over = self._ending.begun and not self._next.may_follow
            return self._members.answer(request, over=over)
        return {"error": "no such question: %s" % ask}

    def stop(self, order: Dict[str, Any]) -> None:
        """Stop as the controller or the system wants it: ask, wait, then end it, everywhere."""
        reason, grace = str(order.get("reason") or "stopped"), order.get("grace")
        by = "start-timeout" if order.get("by") == "start-timeout" else "stop"
        cause = Cause(by=by, reason=reason, node=self._job["node"])
        self._around.stop()
        self._notify.hurry()
        self._end_everywhere(cause._replace(grace=None if grace is None else float(grace)))

    def give_up(self, reason: str) -> None:
        """End what was just started; a node that was about to join does not end the run."""
        if self._job.get("joined"):
            node = self._job["node"]
            self._end_everywhere(Cause(by="supervisor", reason=reason, node=node))
        else:
            self.stop({"reason": reason, "grace": 0})

    def _save(self) -> None:
        self._record.write_snapshot(self.snapshot())

    # What the ranks report.

    def rank_failed(self, cause: Cause) -> None:
        """End the run on every node: here is why."""
        self._next.note_failure(cause)
        self._end_everywhere(cause)

    def rank_ended(self) -> None:
        """Look whether that was all that an end waits for."""
        self._ending.rank_ended()
        self._save()

    def ranks_succeeded(self) -> None:
        """Every rank ended well; what they left behind gets a moment, then the same end."""
        self._ending.ranks_succeeded()

    # What the link reports of other nodes.

    def clock_measured(self, offset: float, error: float) -> None:
        """Note how this clock differs from the master's."""
        self._next.clock_offset = offset
        self._record.event("clock", offset_s=round(offset, 6), error_s=round(error, 6))

    def peer_joined(self, node: str) -> None:
        """Note that a node is there; one that joins a run of a fixed size stands by."""
        standby = self._peers.others[node].seat is not None
        self._record.event("peer-joined", peer=node, standby=standby)
        self._save()

    def master_over(self, state: str) -> None:
        """End what only served the master's processes: no one needs it any longer."""
        self._next.master_finished = state == "finished"
        if self._job.get("ends_with_master"):
            self._ending.follow_master(state)

    def peer_lost(self, node: str, words: str) -> None:
        """End the run, unless it is one that continues without this node."""
        if self._ending.settled:
            return
        seconds = self._job["link"]["lost_after"]
        reason = "%s has been silent for %g s (%s)" % (node, seconds, words)
        if self._ending.certain and self._peers.others_over and not self._next.may_follow:
            return  # it left after its end, and had told us why
        if self._continues_without(node, reason):
            if self._job.get("elastic") and not self._peers.others[node].spare:
                began = time.time() - seconds
                self.loop.call_later(LEFT_SECONDS, lambda: self._ranks.end_older(began, node))
            return
        own = self._job["node"]
        self._end_everywhere(Cause(by="lost", reason=reason, node=own, lost=node))
        since = time.time() - seconds
        self._record.event("peer-lost", peer=node, message=words, since=since)

    def peer_leaves(self, ending: Dict[str, Any]) -> bool:
        """Tell whether the run continues without a node that ends its part."""
        ordered = ending["by"] in ORDERED and not ending.get("refuses")
        return not ordered and self._continues_without(ending["node"], ending["reason"])

    def _continues_without(self, node: str, words: str) -> bool:
        """Tell whether enough nodes are left; the launcher then starts the ranks again.

        Only the master counts them. Its own end is that of the run: it has the launcher's store.
        """
        if self._job["node_rank"] != 0:
            return False
        peer = self._peers.others[node]
        if not peer.spare and (self._ending.begun or not self._members.enough_without(node)):
            return False
        if not peer.left:  # however often it tells us
            self._peers.change(node, left=True)
            self._record.event("peer-left", peer=node, message=words)
        return True

    def peer_ending(self, message: Dict[str, Any]) -> None:
        """End with another node, and note why that ends."""
        cause = Cause.read(message)
        self._next.see(cause)
        if self._ending.begun and cause.refuses:
            return  # it makes this end final, and hastens nothing
        if cause.ordered or self._ending.begun:
            self._ending.begin(cause)
        else:
            reason = "%s: %s" % (cause.node, cause.reason)
            end = Cause("peer", reason, cause.node, lines_grace=cause.lines_grace)
            self._ending.begin(end, late=cause.by == "start-timeout")
            self._record.event(
                "peer-bad-end",
                peer=cause.node,
                message=cause.reason,
                by=cause.by,
                rank=cause.rank,
                exit_code=cause.exit_code,
                signal=cause.killed_by,
                lost=cause.lost,
            )

    # Whether the run is hung.

    def life(self) -> PeerMessage:
        """Return what to tell the master about this node's ranks."""
        return self._hang.tell(unseen=bool(self._housekeeping.elsewhere))

    def run_hung(self, judgement: PeerMessage) -> None:
        """Note that the run is hung, or runs again."""
        if not self._ending.begun:
            self._hang.take(judgement)

    def run_slow(self, judged: List[PeerMessage]) -> None:
        """Note which ranks of this node keep the others waiting."""
        if not self._ending.begun:
            self._hang.slow.take(judged)

    # What the system ends.

    def _on_signal(self, number: signal.Signals) -> None:
        self.stop({"reason": "the supervisor was asked to end (%s)" % number.name})

    # The end.

    def _is_up(self) -> bool:
        return self._ranks.all_started and not self._peers.missing

    def _is_ending(self) -> bool:
        return self._ending.begun

    def _end_everywhere(self, cause: Cause) -> None:
        if self._ending.settled:
            return
        cause = cause._replace(reason=cause.reason[:REASON_LIMIT])
        self._next.see(cause)
        self._peers.send_ending(cause._asdict())
        self._ending.begin(cause, late=cause.by == "start-timeout")

    def _state(self) -> str:
        if self.again is not None:
            return "starting"
        end = self._ending.account
        if end:
            return "running" if end["state"] == "finished" else "stopping"
        started = self._job.get("standby") or self._ranks.all_started
        return "running" if started else "starting"


class Finisher(Supervisor):
    """Takes the dead supervisor's place; what it left running has been killed."""

    def finish(self, saved: Dict[str, Any], reason: str, died: float) -> None:
        """End this node run and with it the run, unless it was ending already.

        `saved` is the dead supervisor's last state, `reason` and `died` how and when it died.
        """
        self._ranks.stopping = True
        self._next.give_up("the supervisor had died")
        self._record.event("supervisor-died", time=died, message=reason, pid=saved.get("pid"))
        self.began = saved.get("began", self.began)
        self._ending.takes_over = True
        self._ending.stop_file = saved.get("stop_file", "")
        self._ranks.restore(saved.get("ranks", ()))
        self._housekeeping.start_heartbeat()
        end, node = saved.get("end"), self._job["node"]
        if end is None:
            self._end_everywhere(Cause(by="supervisor", reason=reason, node=node))
            return
        if end["state"] != "finished":  # the others may not have heard
            self._peers.send_ending(Cause.read({**end, "node": node})._asdict())
        self._ending.resume({**end, "reason": "%s; %s" % (end["reason"], reason)})
