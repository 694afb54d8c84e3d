"""Whether a run that failed is started again, as its nodes agree without the controller.

Once nothing of a failed attempt is left, each node looks at what it has: ranks that failed,
checkpoints, its own health. A worker tells that with its bye. The master decides, tells all, waits,
and says when to go. Each supervisor then hands its node to that of the next attempt (see
`guard`). Until that moment a stop, a lost master or a dead supervisor makes the end final.

Nodes that the decision leaves out end for good. Before others take their places, one that fell
silent has had the time to find that out by itself, and to end its ranks (`FENCE_SECONDS`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import SILENT_SECONDS, PeerMessage, heartbeat_seconds
from clusterctl.node.run.files.node_job import (
    NodeJob,
    Seat,
    may_restart,
    most_attempts,
    run_attempt,
)
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.around.time_limit import seconds_left
from clusterctl.node.supervisor.shutdown import FAILURE_GRACE, Cause, first_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterctl.node.peer_link.peer_link import Peers
    from clusterctl.node.restart.judgement import AttemptEnd

LOOK_SECONDS = 150.0
"""How long a node may take to look at its checkpoints and its health."""
PATTERNS_SECONDS = 20.0
"""How long the search for all patterns of the job may take."""
TELL_SECONDS = 0.5
"""How long the master stays after it has told that there is no next attempt."""
HEARD_SECONDS = 3.0
"""How long a worker stays that refuses, until the master, or its next supervisor, knows."""
FENCE_SECONDS = 3.0
"""Beyond a heartbeat and the grace: until a node that fell silent has certainly ended its ranks."""
MOST_CAUSES = 4
"""Of each kind that are kept: the first ones tell."""

OPEN, OVER, GO = "open", "over", "go"
"""What becomes of the run: not known yet; it ends; the next attempt begins now."""


class NextAttempt:
    """What one attempt leaves to the next, on this node."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        peers: Peers,
        on_change: Callable[[], None],
        guard: Sequence[int],
        on_wait: Callable[[str], None],
    ) -> None:
        """Expect the attempt to end, one way or the other; `guard` starts the next one.

        `on_wait` learns why the run waits for nodes.
        """
        self._loop, self._job, self._record, self._peers = loop, job, record, peers
        self._on_change, self._guard, self._on_wait = on_change, (guard[0], guard[1]), on_wait
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
        self._lost: Dict[str, float] = {}
        """Nodes that fell silent → from when on their ranks have certainly ended."""
        self._spares = set(job.get("spares") or ())
        """Those that stand by, as far as is known."""
        self._joined: Dict[str, Seat] = {}
        """The nodes that have joined since the attempt began, and are there."""
        self._waits: Optional[Dict[str, Any]] = None
        """Since when the run waits for nodes, until when, and why; None: it does not."""
        self._wait_until = 0.0
        self._decided_with: Set[str] = set()
        """The nodes that had joined when it was decided last."""
        self._end: Optional[AttemptEnd] = None
        """How the attempt ended, while the run waits: a node that is back tells nothing of it."""
        self._left_out = False
        """The run continues without this node."""
        self.master_finished = False
        """The job has finished on the master, which starts nothing again then."""
        self._looking = 0
        """The child that finds out what a next attempt, or the decision on it, needs to know."""
        self._patterns: Optional[Dict[str, Any]] = None
        """Which of the job's are in what failed; None: not looked for yet."""
        self.exit_code: Optional[int] = None
        """Of a run that restarts brought no further; None: that of the attempt."""

    @property
    def account(self) -> Dict[str, Any]:
        """Return what supervisor.json has of it."""
        begins = None
        if self.again is not None and not self.why_not:
            wait = max(0.0, self._due - time.monotonic())
            begins = {**_shown(self.again), "at": time.time() + wait}
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

    def note_lost(self, node: str) -> None:
        """Take a node that fell silent: by now it has found that out as well, or soon will."""
        self._joined.pop(node, None)
        grace = float(self._job["stop"].get("failure_grace", FAILURE_GRACE))
        beat = heartbeat_seconds(self._job["link"]["lost_after"])
        fence = beat + grace + FENCE_SECONDS
        if run_attempt(self._job) > 1 and node in self._peers.missing:
            fence += self._job["link"]["lost_after"] + beat  # it may have begun that much later
        self._lost[node] = time.monotonic() + fence

    def drop_spare(self, node: str) -> None:
        """Count on a spare no longer; what was decided with it is decided again."""
        self._spares.discard(node)
        self._joined.pop(node, None)
        if self.again and node not in self._spares_after(self.again):
            self.again = None

    def note_joined(self, seat: Seat) -> None:
        """Count on a node that has joined; what was decided without it is decided again."""
        self._joined[seat["node"]] = seat
        if seat["node"] in self._lost:
            self._lost[seat["node"]] = 0.0  # it has verified that its earlier ranks have ended
        self.again = None

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

        work = partial(_look, self._job, self._record, list(self._failed), oom=oom)
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
            state = self._poll_master(late=late) if self._is_master else self._poll_worker()
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

            none: PeerMessage = {
                "attempt": 0, "checkpoint": None, "step": None, "wait_s": 0.0, "go": False,
                "without": [], "joined": [],
            }  # fmt: skip
            self._peers.send_again({**none, "why": self.why_not[:WHY_LIMIT]})
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

    def _poll_worker(self) -> str:
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

    def _poll_master(self, *, late: bool) -> str:
        if self.again is None:
            all_told = self._peers.all_done or (late and self._peers.rest_done)
            if all_told and not self._looking and self._has_news():
                self._decide()
            return OPEN
        if time.monotonic() < self._due:
            return OPEN
        gone = {*self._lost, *self.again["without"]} - self._joined.keys()
        silences = {n: each for n, each in self._peers.silences.items() if n not in gone}
        for node, silence in silences.items():
            if silence <= self._job["link"]["lost_after"]:
                continue
            if not self._job.get("lineup"):
                self.give_up("%s has been silent for %.0f s" % (node, silence))
                return OVER
            self.note_lost(node)
            self.again = None  # decided again: without it, or not at all
            return OPEN
        if any(silence > SILENT_SECONDS for silence in silences.values()):
            return OPEN
        self._take({**self.again, "go": True})
        self._peers.send_again(self.again)
        return GO

    def _has_news(self) -> bool:
        """Tell whether there is more to decide by than that the run waits for nodes."""
        came = self._joined.keys() & self._peers.afters.keys()
        over = time.monotonic() >= self._wait_until
        return self._waits is None or over or came != self._decided_with

    def _waits_for_nodes(self, why: str) -> bool:
        """Wait for nodes to join, as long as the job allows; False: no longer."""
        restart = self._job["restart"]
        limit = restart.get("wait", 0.0) if restart else 0.0
        if self._waits is None and limit:
            now = time.time()
            self._wait_until = time.monotonic() + limit
            self._waits = {"since": now, "until": now + limit, "why": why}
            self._record.event("waits", **self._waits)
            self._on_wait(why)
            self._on_change()
        return time.monotonic() < self._wait_until

    def _take(self, again: PeerMessage) -> None:
        decided = self.again is None or not again["go"]
        self.again = again
        if decided:
            self._due = time.monotonic() + again["wait_s"]
            self._record.event("again", of=self._most, **_shown(again))
            self._on_change()

    def _decide(self) -> None:
        """Decide with what all nodes have told; only the master does."""
        try:
            self._decide_by(self._peers.afters)
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide how the run ended)
            traceback.print_exc()
            self.give_up("it cannot be decided: %r" % error)

    def _decide_by(self, told: Mapping[str, PeerMessage]) -> None:
        from clusterctl.node.peer_link.restart_messages import (  # noqa: PLC0415  (few runs)
            MOST_WITHOUT,
            WHY_LIMIT,
            parse_after,
        )
        from clusterctl.node.restart.own_rules import FoundPatterns  # noqa: PLC0415
        from clusterctl.node.supervisor import decide_next  # noqa: PLC0415  (few runs)

        lost = [node for node in self._lost if node in self._job["workers"]]
        self._decided_with = set(self._joined.keys() & told.keys())
        gone = set(lost) - self._decided_with
        told = {node: after for node, after in told.items() if node not in gone}
        needed = set(self._job["workers"]) - set(self._job.get("spares") or ())
        silent = sorted(needed - set(told) - set(lost))
        if silent:
            self.give_up("%s did not say what it has" % ", ".join(silent))
            return
        unused = set(self._job.get("spares") or ()) - self._spares
        afters = {self._job["node"]: parse_after(self.after), **told}
        afters = {node: after for node, after in afters.items() if node not in unused}
        if self._patterns is None and self._look_for_patterns(afters):
            return
        looked = self._patterns or {}
        patterns = FoundPatterns(**{name: tuple(each) for name, each in looked.items()})
        found = decide_next.decide_next(
            self._job,
            self._record.paths,
            self._causes,
            afters,
            patterns,
            lost,
            [self._joined[node] for node in sorted(self._decided_with)],
            self._end,
        )
        if found.lacks and self._waits_for_nodes(found.decision.why):
            self._end = found.end
            return
        if found.decision.action != "again":
            self.exit_code = found.decision.exit_code
            missed = "; no node joined in time (clusterctl join)" if self._waits else ""
            self.give_up(found.decision.why + missed + found.way_on)
            return
        self._waits = None
        count = len(found.decision.without)
        if count > MOST_WITHOUT:
            self.give_up("%s; %d nodes are too many to leave out" % (found.decision.why, count))
            return
        left = seconds_left(self._job)
        if left is not None and left <= found.decision.wait_s:
            self.give_up("%s; its time is over before the next attempt" % found.decision.why)
            return
        newest = found.checkpoint
        fenced = max((self._lost[node] for node in lost), default=0.0) - time.monotonic()
        self._take(
            {
                "attempt": run_attempt(self._job) + 1,
                "checkpoint": newest.path if newest else None,
                "step": newest.step if newest else None,
                "wait_s": max(found.decision.wait_s, round(fenced, 1)),
                "why": found.decision.why[:WHY_LIMIT],
                "go": False,
                "without": list(found.decision.without),
                "joined": list(found.joined),
                "start": newest._asdict() if newest else None,
            }
        )
        self._peers.send_again(self.again or {})

    def _look_for_patterns(self, afters: Mapping[str, PeerMessage]) -> bool:
        """Find out in a child which of the job's patterns are in what failed; False: none is."""
        restart = self._job["restart"]
        assert restart is not None
        wanted = [*restart["never"].get("patterns", ()), *restart["on"].get("patterns", ())]
        failures = [each for after in afters.values() for each in after["failures"]]
        lines = [line for each in failures for line in each["lines"]]
        if not wanted or not lines:
            return False

        def take(found: Dict[str, Any]) -> None:
            self._looking = 0
            self._patterns = found or {"late": wanted}
            for pattern in self._patterns["late"]:
                self._record.event("pattern-late", pattern=pattern)

        work = partial(_find, wanted, lines)
        self._looking = run_apart(self._loop, work, take, seconds=PATTERNS_SECONDS)
        return True

    def announce(self) -> None:
        """Write into the log what the next attempt is, before its first line."""
        assert self.again is not None
        where = "from the beginning"
        if self.again["checkpoint"] is not None:
            step = self.again["step"]
            what = self.again["checkpoint"] if step is None else "step %d" % step
            where = "from checkpoint " + what
        words = (self.again["attempt"], self._most, where, self.again["why"])
        with contextlib.suppress(OSError):  # a full disk, which the next attempt may not mind
            os.write(1, ("attempt %d of %d, %s: %s\n" % words).encode("utf-8", "replace"))
        self._record.log_times()  # noted now: the error that it names is not the next attempt's


def _shown(again: PeerMessage) -> Dict[str, Any]:
    """Return what people are shown of the next attempt."""
    names = ("attempt", "checkpoint", "step", "wait_s", "why", "without")
    return {name: again[name] for name in names}


def _find(patterns: Sequence[str], lines: Sequence[str]) -> Dict[str, Any]:
    """Look for patterns; runs in a child, which alone imports what it takes."""
    from clusterctl.node.restart.patterns import find_patterns  # noqa: PLC0415

    return find_patterns(patterns, lines)


def _look(
    job: NodeJob, record: RunFiles, failed: List[Tuple[float, Cause]], *, oom: bool
) -> Dict[str, Any]:
    """Look at what this node has; runs in a child, which alone imports what it takes."""
    from clusterctl.node.supervisor.after_attempt import look  # noqa: PLC0415

    return look(job, record, failed, oom=oom)
