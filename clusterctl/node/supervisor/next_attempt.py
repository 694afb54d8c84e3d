"""Whether a run that failed is started again, as its nodes agree without the controller.

Once nothing of a failed attempt is left, each node looks at what it has: ranks that failed,
checkpoints, its own health. A worker tells that with its bye. The master decides, tells all, waits,
and says when to go. Each supervisor then hands its node to that of the next attempt (see
`guard`). Until that moment a stop, a lost master or a dead supervisor makes the end final.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import PeerMessage
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.run.files.node_job import (
    NodeJob,
    may_restart,
    most_attempts,
    run_attempt,
    start_of,
)
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import ProcessKey
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.shutdown import Cause, first_of

LOOK_SECONDS = 150.0
"""How long a node may take to look at its checkpoints and its health."""
TELL_SECONDS = 0.5
"""How long the master stays after it has told that there is no next attempt."""
HEARD_SECONDS = 3.0
"""How long a worker stays that refuses, until the master, or its next supervisor, knows."""
MOST_CAUSES = 4
"""Of each kind that are kept: the first ones tell."""

OPEN, OVER, GO = "open", "over", "go"
"""What becomes of the run: not known yet; it ends; the next attempt begins now."""


class Attempt(NamedTuple):
    """What of its supervisor an attempt needs."""

    loop: EventLoop
    job: NodeJob
    record: RunFiles
    peers: Peers
    guard: ProcessKey
    """The process that starts the next attempt."""
    on_change: Callable[[], None]
    on_wait: Callable[[str], None]
    """Learns on the master why the run waits for nodes."""


class NextAttempt:
    """What one attempt leaves to the next, on this node."""

    def __init__(self, attempt: Attempt) -> None:
        """Expect the attempt to end, one way or the other."""
        self._loop, self._job, self._record = attempt.loop, attempt.job, attempt.record
        self._peers, self._guard = attempt.peers, attempt.guard
        self._on_change, self._on_wait = attempt.on_change, attempt.on_wait
        job = attempt.job
        self._on = may_restart(job)
        self._is_master = job["node_rank"] == 0
        self._most = most_attempts(job)
        self._causes: List[Cause] = []
        """What brought the attempt down, in the order in which it was heard here."""
        self._failed: List[Tuple[float, Cause]] = []
        """Ranks that failed here by themselves, and when by the master's clock."""
        self.clock_offset = 0.0
        """Seconds that this node's clock is ahead of the master's."""
        self._own: Optional[PeerMessage] = None
        """What this node knows after the attempt; None: not known (yet)."""
        self._due = self._told_until = 0.0
        self.again: Optional[PeerMessage] = None
        """The next attempt, as the master has decided; None: not (yet)."""
        self.why_not = ""
        """Why there is no next attempt, whatever speaks for one; empty: there may be."""
        self._waits: Optional[Dict[str, Any]] = None
        """Since when the run waits for nodes, until when, and why; None: it does not."""
        self._left_out = False
        """The run continues without this node."""
        self.master_finished = False
        """The job has finished on the master, which starts nothing again then."""
        self._looking = 0
        """The child that finds out what a next attempt, or the decision on it, needs to know."""
        self.exit_code: Optional[int] = None
        """Of a run that restarts brought no further; None: that of the attempt."""

    @property
    def account(self) -> Dict[str, Any]:
        """Return what supervisor.json has of it."""
        begins = None
        if self.again is not None and not self.why_not:
            wait = max(0.0, self._due - time.monotonic())
            begins = {**self._shown(self.again), "at": time.time() + wait}
        return {"attempts": self._most, "again": begins, "waits": self._waits}

    @property
    def verdict(self) -> Dict[str, Any]:
        """Return what end.json has of it, of a run that may restart."""
        if not self.why_not or not may_restart(self._job):
            return {}
        told = {"attempt": run_attempt(self._job), "no_restart": self.why_not}
        return told if self.exit_code is None else {**told, "run_exit_code": self.exit_code}

    @property
    def heard_nothing(self) -> bool:
        """No node has told of a failure or a stop."""
        return not self._causes

    @property
    def first_cause(self) -> Optional[Cause]:
        """What brought the attempt down first, on any node; None: nothing has."""
        return first_of(self._causes)

    @property
    def may_follow(self) -> bool:
        """There may be a next attempt, as far as is known."""
        return self._on and not self.why_not

    # What happens in the attempt.

    def see(self, cause: Cause) -> None:
        """Take what ends the attempt, here or on another node; a stop makes its end final."""
        if cause.refuses:
            self.give_up("%s: %s" % (cause.node, cause.reason))
        elif cause.ordered:
            self.give_up("it was stopped" if cause.by == "stop" else cause.reason)
        elif cause.by == "before":
            self.give_up("the command before the ranks failed on %s" % cause.node)
        elif cause.by == "supervisor":
            self.give_up("the supervisor on %s had died" % cause.node)
        elif cause.by == "hang" and self._job["hang"]["action"] == "stop":
            self.give_up("it was hung, and job.hang.action is stop")
        elif cause.lost == self._job["master"]["node"]:
            self.give_up("%s, whose supervisor decides, is lost" % cause.lost)
        if len(self._causes) < MOST_CAUSES:
            self._causes.append(cause)

    def note_failure(self, cause: Cause) -> None:
        """Take a rank or the launcher that failed on this node by itself."""
        if self._on and len(self._failed) < MOST_CAUSES:
            self._failed.append((time.time() - self.clock_offset, cause))

    def give_up(self, why: str) -> None:
        """Let the attempt's end be the run's; nothing more is found out for a next one."""
        self.why_not = self.why_not or why
        if self._looking:  # the end of its pipe follows
            with contextlib.suppress(OSError):
                living = {process.pid: process for process in processes.living_descendants()}
                below = {self._looking, *processes.descendants([self._looking], living)}
                processes.send_all([living[pid] for pid in below & set(living)], signal.SIGKILL)

    # What this node knows after it.

    def look(self, end: Dict[str, Any], *, oom: bool, blame: str, then: Callable[[], None]) -> None:
        """Find out what there is to know before a next attempt, if there may be one.

        `blame`: why this node may be the reason of a hang.
        """
        self._require_guard()
        if not self._on or self.why_not or end["state"] == "finished":
            self._on = self._on and end["state"] != "finished"
            then()
            return

        more = {"stuck": bool(end["left"]), "blame": blame}

        def take(found: Dict[str, Any]) -> None:
            self._looking = 0
            self._own = {**found, **more} if found else None
            then()

        lost = {one.lost for one in self._causes if one.lost}
        work = partial(_look, self._job, self._record, list(self._failed), lost, oom=oom)
        try:
            self._looking = run_apart(self._loop, work, take, seconds=LOOK_SECONDS)
        except OSError:
            then()

    def _require_guard(self) -> None:
        with contextlib.suppress(OSError):  # it cannot be checked now; the next poll will
            if self._on and not processes.alive(self._guard):
                self.give_up("the guard of %s, which starts it, had died" % self._job["node"])

    @property
    def after(self) -> Optional[PeerMessage]:
        """What the master needs to know of this node to decide; None: the end is final here."""
        from clusterctl.node.peer_link.restart_messages import fit_after  # noqa: PLC0415  (few runs)

        return None if self.why_not or self._own is None else fit_after(self._own)

    # What becomes of the run.

    def poll(self, *, late: bool) -> str:
        """Return what becomes of the run: OPEN, OVER or GO; to be asked now and then.

        `late`: nodes that never came are waited for no longer.
        """
        if not self._on:
            told = None if self._is_master else self._peers.again
            heard = told is not None and not told["attempt"]
            return OPEN if time.monotonic() < self._told_until and not heard else OVER
        self._require_guard()
        if self._own is None:
            self.give_up("this node could not look at what it has")
        state = OVER
        if not self.why_not:
            state = self._poll(late=late)
        if self.why_not:
            self._refuse()
            return self.poll(late=late)
        return state

    def _refuse(self) -> None:
        """Tell the others, once, that there is no next attempt."""
        self._on = False
        if self._is_master:
            from clusterctl.node.peer_link.restart_messages import (  # noqa: PLC0415  (few runs)
                WHY_LIMIT,
            )

            none: PeerMessage = {"attempt": 0, "wait_s": 0.0, "why": self.why_not[:WHY_LIMIT]}
            self._peers.send_again(none)
            if self._job["workers"]:
                self._told_until = time.monotonic() + TELL_SECONDS
        elif self._left_out:
            self._told_until = 0.0
        elif not self.master_finished and not (
            self._peers.again and self._peers.again["attempt"] == 0
        ):
            refusal = Cause("stop", self.why_not, self._job["node"], refuses=True)
            self._peers.send_ending(refusal._asdict())
            if not any(one.lost == self._job["master"]["node"] for one in self._causes):
                self._told_until = time.monotonic() + HEARD_SECONDS

    def _poll(self, *, late: bool) -> str:
        """Return what becomes of the run, as the master says."""
        del late
        told = self._peers.again
        if told is None and self.master_finished:
            self.give_up("the job has finished on %s" % self._job["master"]["node"])
            return OVER
        if told is None or told == self.again:
            return OPEN
        node = self._job["node"]
        if not told["attempt"]:
            self.give_up(told["why"])
        elif told["attempt"] != run_attempt(self._job) + 1:
            self.give_up("%s names attempt %d" % (self._job["master"]["node"], told["attempt"]))
        elif node in told["without"] and not self._takes_part(told):
            self._left_out = True
            self.give_up("the run continues without this node: %s" % told["why"])
        elif node not in self._spares_after(told) and not self._has_seen(told["checkpoint"]):
            self.give_up("checkpoint %s is not on this node" % told["checkpoint"])
        else:
            self._take(told)
            return GO if told["go"] else OPEN
        return OVER

    def _takes_part(self, again: PeerMessage) -> bool:
        return self._job["node"] in (seat["node"] for seat in again["joined"])

    def _spares_after(self, again: PeerMessage) -> Sequence[str]:
        """Return who stands by in the next attempt: that one loads nothing."""
        if not (self._job.get("spares") or again["joined"]):
            return ()
        from clusterctl.node.restart.lineup import NoLineupError, lineup_of  # noqa: PLC0415  (few runs)

        with contextlib.suppress(NoLineupError):  # the guard refuses it
            return lineup_of(self._job, again["without"], again["joined"]).spares
        return ()

    def _has_seen(self, checkpoint: Optional[str]) -> bool:
        """Tell whether this node knows a checkpoint: no other node may name a file to load."""
        if checkpoint is None:
            return True
        sight = (self._own or {}).get("sight", {})
        seen = [one["path"] for one in sight.get("checkpoints", ())]
        return os.path.join(self._job["workdir"], checkpoint) in seen

    def _take(self, again: PeerMessage) -> None:
        decided = self.again is None or not again["go"]
        self.again = again
        if decided:
            self._due = time.monotonic() + again["wait_s"]
            self._record.event("again", of=self._most, **self._shown(again))
            self._on_change()

    def _shown(self, again: PeerMessage) -> Dict[str, Any]:
        """Return what people are shown of the next attempt."""
        shown = {name: again[name] for name in ("attempt", "wait_s", "why")}
        back = {seat["node"] for seat in again["joined"]}
        shown["without"] = [node for node in again["without"] if node not in back]
        shown["checkpoint"], shown["step"] = start_of(self._job, again)
        return shown

    def announce(self) -> None:
        """Write into the log what the next attempt is, before its first line."""
        assert self.again is not None
        checkpoint, step = start_of(self._job, self.again)
        what = checkpoint if step is None else "step %d" % step
        where = "from the beginning" if checkpoint is None else "from checkpoint %s" % what
        words = (self.again["attempt"], self._most, where, self.again["why"])
        with contextlib.suppress(OSError):  # a full disk, which the next attempt may not mind
            os.write(1, ("attempt %d of %d, %s: %s\n" % words).encode("utf-8", "replace"))
        self._record.log_times()  # noted now: the error that it names is not the next attempt's


def _look(
    job: NodeJob,
    record: RunFiles,
    failed: List[Tuple[float, Cause]],
    lost: Set[str],
    *,
    oom: bool,
) -> Dict[str, Any]:
    """Look at what this node has; runs in a child, which alone imports what it takes."""
    from clusterctl.node.supervisor.after_attempt import look  # noqa: PLC0415

    return look(job, record, failed, lost, oom=oom)
