"""The master's part between two attempts: counts who is there, decides, and lets all go.

Nodes that the decision leaves out end for good. Before others take their places, one that fell
silent has had the time to find that out by itself, and to end its ranks (`FENCE_SECONDS`). If too
few nodes are left, the run waits for others to join, as long as the job allows.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict, Mapping, Optional, Sequence, Set

from clusterctl.node.peer_link.messages import SILENT_SECONDS, PeerMessage, heartbeat_seconds
from clusterctl.node.run.files.node_job import Seat, run_attempt
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.around.time_limit import seconds_left
from clusterctl.node.supervisor.next_attempt import GO, OPEN, OVER, Attempt, NextAttempt
from clusterctl.node.supervisor.shutdown import FAILURE_GRACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterctl.node.restart.judgement import AttemptEnd

PATTERNS_SECONDS = 20.0
"""How long the search for all patterns of the job may take."""
FENCE_SECONDS = 3.0
"""Beyond a heartbeat and the grace: until a node that fell silent has certainly ended its ranks."""


class MasterAttempt(NextAttempt):
    """What one attempt leaves to the next, on the master."""

    def __init__(self, attempt: Attempt) -> None:
        """Expect the attempt to end."""
        super().__init__(attempt)
        self._lost: Dict[str, float] = {}
        """Nodes that fell silent → from when on their ranks have certainly ended."""
        self._gone: Set[str] = set()
        """Those that stood by, and are there no longer."""
        self._joined: Dict[str, Seat] = {}
        """The nodes that have joined since the attempt began, and are there."""
        self._wait_until = 0.0
        self._decided_with: Set[str] = set()
        """The nodes that had joined when it was decided last."""
        self._end: Optional[AttemptEnd] = None
        """How the attempt ended, while the run waits: a node that is back tells nothing of it."""
        self._patterns: Optional[Dict[str, Any]] = None
        """Which of the job's are in what failed; None: not looked for yet."""

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
        self._gone.add(node)
        self._joined.pop(node, None)
        if self.again and node not in self._spares_after(self.again):
            self.again = None

    def note_joined(self, seat: Seat) -> None:
        """Count on a node that has joined; what was decided without it is decided again."""
        self._joined[seat["node"]] = seat
        self._gone.discard(seat["node"])
        if seat["node"] in self._lost:
            self._lost[seat["node"]] = 0.0  # it has verified that its earlier ranks have ended
        self.again = None

    def _poll(self, *, late: bool) -> str:
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

    def _decide(self) -> None:
        """Decide with what all nodes have told; only the master does."""
        try:
            self._decide_by(self._peers.afters)
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide how the run ended)
            import traceback  # noqa: PLC0415  (start-up counts)

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
        afters = {self._job["node"]: parse_after(self.after), **told}
        afters = {node: after for node, after in afters.items() if node not in self._gone}
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
            missed = "; no node joined in time" if self._waits and found.lacks else ""
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


def _find(patterns: Sequence[str], lines: Sequence[str]) -> Dict[str, Any]:
    """Look for patterns; runs in a child, which alone imports what it takes."""
    from clusterctl.node.restart.patterns import find_patterns  # noqa: PLC0415

    return find_patterns(patterns, lines)
