"""Who has joined while the ranks of a new run gather, and an end to waiting for who has not."""

import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event, NodeEvent

QUIET_SECONDS = 10.0
"""Seconds without a rank joining until the missing are named, and again after as many.

Where no rank must join, each time after twice as many: a job may have no rendezvous.
"""
SETTLE_SECONDS, NO_MEETING_SECONDS = 5.0, 60.0
"""Seconds after all ranks have joined until the start is over; and after the launch, if they meet
where no one sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinProgress(Event):
    """So many ranks have joined."""

    kind = "gathering"

    joined: int
    total: int
    missing: tuple[str, ...]
    """`host:rank`, in rank order; or hosts, where their launchers keep all ranks waiting."""
    quiet: bool
    """No rank has joined for a while."""
    seconds: float
    """Since the launch began to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimeout(Event):
    """Ranks wait for others that did not come in time."""

    kind = "start-timeout"

    seconds: float
    missing: tuple[str, ...]


def _is_asked(node: NodePlan) -> bool:
    """Tell whether a user set the number of ranks, not the number of GPUs."""
    return "procs" in node.procs_origin.lower()


@dataclass(slots=True)
class JoinMonitor:
    """Watches a run's events until all ranks have joined."""

    plan: Plan
    began: float = field(default_factory=time.monotonic)
    _joined: set[int] = field(default_factory=set)
    _started: set[int] = field(default_factory=set)
    _launchers: set[str] = field(default_factory=set)
    """Nodes whose launcher has reached the master."""
    _ended: bool = False
    _timed_out: bool = False
    _preparing: bool = False
    """The job's command before its ranks runs: the nodes themselves limit how long."""
    _restarted: float | None = None
    """When the last further attempt was announced."""
    _last_news: float = field(default_factory=time.monotonic)
    _quiet: float = QUIET_SECONDS

    @property
    def missing(self) -> tuple[str, ...]:
        """Name the ranks that have not joined, or the nodes whose launcher keeps all waiting."""
        absent = tuple(n.node for n in self.plan.nodes if n.node not in self._launchers)
        if self._launchers and absent and not self._joined:
            return absent
        return tuple(
            f"{node.node}:{rank}"
            for node in self.plan.nodes
            for rank in node.ranks
            if rank not in self._joined
        )

    @property
    def settled(self) -> bool:
        """The start is over and the run is not: what else is done does not slow it down."""
        now = time.monotonic()
        if self._restarted is not None:  # who joins a further attempt is not counted
            return now - self._restarted >= NO_MEETING_SECONDS
        if self._ended or self._timed_out:
            return False
        joined = len(self._joined) == self.plan.world_size
        over = joined and now - self._last_news >= SETTLE_SECONDS
        return over or now - self.began >= NO_MEETING_SECONDS

    def see(self, event: Event, *, emit: Emit) -> None:
        """Emit the event; before it, what it says about who has joined."""
        if isinstance(event, NodeEvent) and self._note(event.node, event.event):
            emit(self._progress(quiet=False))
        if self._is_slow():
            emit(self._progress(quiet=True))
        emit(event)

    def timeout(self) -> StartTimeout | None:
        """Return, once, who is missing now that the time to join is over."""
        if not self._is_late():
            return None
        self._timed_out = True
        return StartTimeout(seconds=self.plan.start_timeout, missing=self.missing)

    def _note(self, node: str, event: Mapping[str, Any]) -> bool:
        """Take what happened on a node; tell whether a rank joined."""
        # Any rank of the run: with c10d rendezvous, torchrun assigns ranks itself.
        rank = event["rank"] if event.get("rank") in range(self.plan.world_size) else None
        match event.get("kind"):
            case "launcher-joined":
                self._launchers.add(node)
            case "rank-started" if rank is not None:
                self._started.add(rank)
            case "rank-joined" if rank is not None and rank not in self._joined:
                self._joined.add(rank)
                self._last_news = time.monotonic()
                return True
            case "again":
                self._restarted = time.monotonic()
            case "before":
                self._preparing = True
            case "begin":
                self._preparing, self.began = False, time.monotonic()
            case "rank-ended" | "launcher-ended" | "stop-ordered" | "end":
                self._ended = True
        return False

    def _progress(self, *, quiet: bool) -> JoinProgress:
        return JoinProgress(
            joined=len(self._joined),
            total=self.plan.world_size,
            missing=self.missing,
            quiet=quiet,
            seconds=round(time.monotonic() - self.began, 1),
        )

    @property
    def _over(self) -> bool:
        """No rank is waited for any more."""
        everybody = len(self._joined) == self.plan.world_size
        over = self._ended or self._timed_out or self._preparing
        return over or everybody or not self.plan.gathers

    @property
    def _must_meet(self) -> bool:
        """Some ranks wait for others: some were not even started, or only some have joined.

        What a launcher has started has met: its ranks may take their time. So may a script that
        runs once per node: it may be busy, or never connect. Its node tells if it cannot.
        """
        if self._over or len(self._started) < self.plan.world_size:
            return not self._over
        once_a_node = all(node.procs == 1 and _is_asked(node) for node in self.plan.nodes)
        return bool(self._joined) and not (self.plan.master.launcher_argv or once_a_node)

    def _is_slow(self) -> bool:
        now = time.monotonic()
        if self._over or now - self._last_news < self._quiet:
            return False
        if not self._must_meet:
            if not self._joined and (len(self.plan.nodes) == 1 or self.plan.master.launcher_argv):
                return False  # it need not have a rendezvous
            self._quiet *= 2
        self._last_news = now
        return True

    def _is_late(self) -> bool:
        return self._must_meet and time.monotonic() - self.began > self.plan.start_timeout
