"""The master's part between two attempts: counts who is there, decides, and lets all go.

Nodes that the decision leaves out end for good. Before others take their places, one that fell
silent has had the time to find that out by itself, and to end its ranks (`FENCE_SECONDS`). If too
few nodes are left, the run waits for others to join, as long as the job allows.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict, Mapping, Optional, Sequence

from clusterctl.node.peer_link.messages import SILENT_SECONDS, PeerMessage, heartbeat_seconds
from clusterctl.node.peer_link.peer import ADMITTED, OVER, THERE, Peer
from clusterctl.node.run.files.node_job import Seat, run_attempt
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.around.time_limit import seconds_left
from clusterctl.node.supervisor.next_attempt import GO, OPEN, Attempt, NextAttempt
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
        self._wait_until = 0.0
        self._decided_at = 0.0
        """When it was decided first: waits count from then."""
        self._decided_with: Dict[str, Optional[Seat]] = {}
        """Who was present when it was decided last, each with its seat if it had joined."""
        self._end: Optional[AttemptEnd] = None
        """How the attempt ended, while the run waits: a node that is back tells nothing of it."""
        self._patterns: Optional[Dict[str, Any]] = None
        """Which of the job's are in what failed; None: not looked for yet."""

    def _fence(self, peer: Peer) -> float:
        """Return when the ranks of a node that was lost have certainly ended.

        It finds out that it is lost, too; one that is back has verified that they have.
        """
        if peer.lost_at is None or peer.phase in (THERE, OVER):
            return 0.0
        grace = float(self._job["stop"].get("failure_grace", FAILURE_GRACE))
        lost_after = self._job["link"]["lost_after"]
        beat = heartbeat_seconds(lost_after)
        # One that did not come to a further attempt may have begun that much later.
        later = lost_after + beat if run_attempt(self._job) > 1 and not peer.came else 0.0
        return peer.lost_at + beat + grace + FENCE_SECONDS + later

    def _present(self) -> Dict[str, Optional[Seat]]:
        return {name: peer.seat for name, peer in self._peers.others.items() if peer.present}

    def _poll(self, *, late: bool) -> str:
        if self.again is not None and self._present() != self._decided_with:
            self.again = None  # decided again
        if self.again is None:
            all_told = self._peers.all_done or (late and self._peers.rest_done)
            if all_told and not self._looking and self._has_news():
                self._decide()
        elif time.monotonic() >= self._due and self._all_heard(self.again["without"]):
            self._take({**self.again, "go": True})
            self._peers.send_again(self.again)
            return GO
        return OPEN

    def _all_heard(self, without: Sequence[str]) -> bool:
        """Tell whether all that take part were heard lately; who is lost is decided without."""
        lost_after, heard = self._job["link"]["lost_after"], True
        for node, silence in self._peers.silences.items():
            peer = self._peers.others[node]
            if peer.phase == ADMITTED:  # it comes soon: the next attempt would not know it
                heard = heard and silence >= 0
            elif peer.present and (peer.seat or node not in without):
                heard = heard and silence <= min(SILENT_SECONDS, lost_after)
                if silence > lost_after and self._job.get("lineup"):
                    self._peers.others[node] = peer.lost(time.monotonic())
                elif silence > lost_after:
                    self.give_up("%s has been silent for %.0f s" % (node, silence))
        return heard

    def _has_news(self) -> bool:
        """Tell whether there is more to decide by than that the run waits for nodes."""
        over = time.monotonic() >= self._wait_until
        return self._waits is None or over or self._present() != self._decided_with

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
            self._decide_by()
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not hide how the run ended)
            import traceback  # noqa: PLC0415  (start-up counts)

            traceback.print_exc()
            self.give_up("it cannot be decided: %r" % error)

    def _decide_by(self) -> None:
        from clusterctl.node.peer_link.restart_messages import (  # noqa: PLC0415  (few runs)
            MOST_WITHOUT,
            WHY_LIMIT,
            parse_after,
        )
        from clusterctl.node.restart.own_rules import FoundPatterns  # noqa: PLC0415
        from clusterctl.node.supervisor import decide_next  # noqa: PLC0415  (few runs)

        self._decided_at = self._decided_at or time.monotonic()
        self._decided_with, others = self._present(), self._peers.others
        lost = [node for node in self._job["workers"] if others[node].lost_at is not None]
        told = {name: peer.after for name, peer in others.items() if peer.after and not peer.left}
        needed = set(self._job["workers"]) - set(self._job.get("spares") or ())
        silent = sorted(needed - set(told) - set(lost))
        if silent:
            self.give_up("%s did not say what it has" % ", ".join(silent))
            return
        afters = {self._job["node"]: parse_after(self.after), **told}
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
            [seat for node, seat in sorted(self._decided_with.items()) if seat and node in told],
            self._end,
        )
        if found.lacks and self._waits_for_nodes(found.decision.why):
            self._end = found.end
            # They end, so that they can be repaired and join again.
            why, without = found.decision.why[:WHY_LIMIT], list(found.decision.without)
            number = run_attempt(self._job) + 1
            self._peers.dismiss({"attempt": number, "wait_s": 0.0, "why": why, "without": without})
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
        begins = self._decided_at + found.decision.wait_s
        begins = max([begins, *(self._fence(others[node]) for node in lost)])
        self._take(
            {
                "attempt": run_attempt(self._job) + 1,
                "checkpoint": newest.path if newest else None,
                "step": newest.step if newest else None,
                "wait_s": max(0.0, round(begins - time.monotonic(), 1)),
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
