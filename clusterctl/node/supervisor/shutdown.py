"""Ends a run on a node: the request, then TERM, then KILL, until nothing is left."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import ORDERED
from clusterctl.node.run.processes.processes import (
    KILL_TIMEOUT,
    TERM_TO_KILL,
    Process,
    descendants,
    send_all,
)

WAITING_POLL = 0.25
KILLING_POLL = 0.05
FAILURE_GRACE = 1.0
"""Seconds for the others once one has failed, if the job does not set them."""
LEFTOVER_GRACE = 5.0
"""Seconds for what a rank that ended well left behind (an upload, a logger), and again to KILL."""

STATES = {"stop": "stopped", "max-time": "stopped", "lost": "lost"}
"""Cause of the end → the state it leaves; anything else is a failure."""


class Cause(NamedTuple):
    """Why a run is ended on a node: what one supervisor tells the others."""

    by: str
    """rank, launcher, stop, max-time, lost, peer, start-timeout, world, hang or before."""
    reason: str
    node: str
    """Where it began."""
    exit_code: Optional[int] = None
    rank: Optional[int] = None
    killed_by: Optional[int] = None
    """The signal that ended the rank or the launcher."""
    lost: Optional[str] = None
    """The node that was silent for too long."""
    grace: Optional[float] = None
    """Of a stop: seconds for the ranks, if not the job's."""
    lines_grace: Optional[float] = None
    """Of a rank that only echoes another's end: seconds for the lines of the others."""
    refuses: bool = False
    """A node lets no next attempt begin. It is by `stop`, so that all hear of it."""
    line: Optional[str] = None
    """What the rank printed of its error."""

    @property
    def waited(self) -> bool:
        """A rank has waited in vain for another one: it did not only lose the connection to it."""
        from clusterctl.node.printed_error import CLOSED_GRACE  # noqa: PLC0415  (start-up counts)

        return (self.lines_grace or 0.0) > CLOSED_GRACE

    @property
    def ordered(self) -> bool:
        """It is no failure: a user, or the job's own limit, ends the run."""
        return self.by in ORDERED

    @property
    def state(self) -> str:
        """Return the state that it leaves."""
        return STATES.get(self.by, "failed")

    def phases(self, grace: float) -> Phases:
        """Return when to end what does not end by itself; `grace` is the job's for such an end."""
        if not self.ordered:
            return Phases(term=grace, kill=grace)
        grace = grace if self.grace is None else self.grace
        return Phases(term=grace, kill=grace + TERM_TO_KILL)

    @classmethod
    def read(cls, message: Dict[str, Any]) -> Cause:
        """Return a cause from another node or an order; unknown keys are left out."""
        return cls(**{name: value for name, value in message.items() if name in cls._fields})


def first_of(causes: Sequence[Cause]) -> Optional[Cause]:
    """Return the first cause: what only echoes another's end is heard first at times."""
    first = next((one for one in causes if one.lines_grace is None), None)
    return first or next(iter(causes), None)


class Phases(NamedTuple):
    """Seconds from now: when to send TERM to all that is left, and when to KILL it."""

    term: float
    kill: float


class Shutdown:
    """One shutdown, until nothing is left. It may be hastened, never slowed."""

    def __init__(
        self,
        loop: EventLoop,
        find: Callable[[], List[Process]],
        phases: Phases,
        on_over: Callable[[List[Process]], None],
        remove: Optional[Callable[[], int]] = None,
        on_term: Optional[Callable[[List[Process]], None]] = None,
    ) -> None:
        """Start; `on_over` gets what could not be ended, nothing as a rule.

        `on_term` gets what has not ended by itself, before TERM.

        `remove` starts a process that ends what no signal reaches, and returns its pid.
        """
        self._loop, self._find, self._on_over = loop, find, on_over
        self._remove, self._remover, self._on_term = remove, 0, on_term
        now = time.monotonic()
        self._term, self._kill = now + phases.term, now + phases.kill
        self._term_sent = False
        self._over = False
        self._next = loop.call_later(0, self._check)

    def hasten(self, phases: Phases) -> None:
        """Take these phases where they are earlier."""
        now = time.monotonic()
        self._term = min(self._term, now + phases.term)
        self._kill = min(self._kill, now + phases.kill)
        self.check()

    def check(self) -> None:
        """See what is left, and do what is due, once whatever happens now has happened."""
        self._check_in(0)

    def _check(self) -> None:
        if self._over:
            return
        now = time.monotonic()
        try:
            left = self._find()
        except OSError:
            if now > self._kill + KILL_TIMEOUT:
                raise
            self._check_in(KILLING_POLL)  # it cannot be checked now, so nothing is verified
            return
        if self._remove is not None and (not left or now >= self._kill):
            self._remover, self._remove = self._remove(), None
            self._check_in(KILLING_POLL)
            return
        if not left or now > self._kill + KILL_TIMEOUT:
            self._over = True
            self._on_over(left)
            return
        if now >= self._kill:
            send_all(self._own(left), signal.SIGKILL)
        elif now >= self._term and not self._term_sent:
            self._term_sent = True
            own = self._own(left)
            if own and self._on_term is not None:
                self._on_term(own)
            send_all(own, signal.SIGTERM)
        due = self._kill if now >= self._term else self._term
        poll = KILLING_POLL if now >= self._kill else min(WAITING_POLL, max(0.0, due - now))
        self._check_in(poll)

    def _own(self, left: List[Process]) -> List[Process]:
        """Return these processes without the remover and what it has started."""
        if not self._remover:
            return left
        table = {process.pid: process for process in left}
        ours = {self._remover} | descendants([self._remover], table)
        return [process for process in left if process.pid not in ours]

    def _check_in(self, seconds: float) -> None:
        self._next.cancel()
        self._next = self._loop.call_later(seconds, self._check)
