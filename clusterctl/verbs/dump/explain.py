"""Says why a followed run stands still, as soon as its nodes call it hung."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterError
from clusterctl.transport.local_limits import start_thread
from clusterctl.values import dataclass
from clusterctl.verbs.events import Event, NodeEvent, Notice, ignore

if TYPE_CHECKING:
    from clusterctl.inventory.cluster import Cluster
    from clusterctl.verbs.dump.dump import DumpResult
    from clusterctl.verbs.rpc import Nodes
    from clusterctl.verbs.runs.run_log import RunLog

SETTLE_SECONDS = 0.5
"""After the news: a follower that begins late reads at once that the run was hung, and runs."""
APART_SECONDS = 10.0
"""Between two takings: a node may claim again and again that the run is hung."""
ANSWER_SECONDS = 20.0
"""How long a node may take: the others' stacks wait for it."""
REST_SECONDS = 30.0
"""How long an answer is waited for once the run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangExplained(Event):
    """The run is hung: where its ranks were, and why."""

    kind = "verdict"

    result: DumpResult

    def document(self) -> dict[str, Any]:
        """Return it as JSON, without the stacks: `dump --json` has them."""
        return self.result.document(stacks=False)


class HangExplainer:
    """Takes the stacks of a run that is hung, once for each time that it is."""

    def __init__(self, run: str, take: Callable[[], DumpResult]) -> None:
        """Prepare.

        Args:
            take: takes the stacks; called in a thread of its own, never twice at once.
        """
        self._run, self._take = run, take
        self._alarm = 0
        """The number of the last news that it is hung."""
        self._attempt = 1
        """Of a run that restarts."""
        self._stands = False
        """It has not been running again since."""
        self._due, self._taken = math.inf, -math.inf
        """When to take the stacks, and when that was begun last."""
        self._unclear = False
        """The run ended while they were taken: to be taken again when it is over."""
        self._taking: threading.Thread | None = None
        self._result: DumpResult | None = None

    def over(self, events: Generator[Event], log: RunLog | None = None) -> Generator[Event]:
        """Yield the events of a run, and `HangExplained`, or a `Notice` of what to type.

        `log` knows at the end whether stacks were kept because a rank had waited in vain.
        """
        with closing(events):
            for event in events:
                self._hear(event)
                yield event
                yield from self._news()
        yield from self._rest()
        if log is not None and not self._stands:
            yield from self._at_end(log)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, NodeEvent):
            return
        alarm, attempt = event.event.get("alarm"), event.event.get("attempt")
        match event.event.get("kind"):
            case "hung" if isinstance(alarm, int) and alarm > self._alarm:
                self._alarm, self._stands = alarm, True
                self._due = max(time.monotonic() + SETTLE_SECONDS, self._taken + APART_SECONDS)
            case "running-again" if alarm == self._alarm:
                self._stands, self._due, self._unclear = False, math.inf, False
            case "again" if isinstance(attempt, int) and attempt > self._attempt:
                self._attempt = attempt
                self._stands, self._due, self._unclear = False, math.inf, False

    def _news(self) -> Generator[Event]:
        if self._taking is not None:
            if not self._taking.is_alive():
                yield from self._answer()
        elif time.monotonic() >= self._due:
            self._due, self._taken, self._result = math.inf, time.monotonic(), None
            try:
                self._taking = start_thread(self._work, name=f"dump {self._run}")
            except ClusterError:
                yield self._unexplained()

    def _work(self) -> None:
        with suppress(ClusterError):  # as if no node had answered
            self._result = self._take()

    def _answer(self, *, last: bool = False) -> Generator[Event]:
        """Yield what the stacks tell, if the run still stands as when they were asked for."""
        result, self._taking = self._result, None
        if not self._stands or self._due < math.inf:
            return  # of a moment that is over
        states = set(result.states.values()) if result else set()
        self._unclear = not last and bool(states - {"running"})
        if self._unclear or states == {"finished"}:
            return
        if result and result.dumps:
            yield HangExplained(result=result)
        else:
            yield self._unexplained()

    def _rest(self) -> Generator[Event]:
        """Yield what was not told before the run was over: its nodes have kept stacks."""
        if self._taking is not None:
            self._taking.join(REST_SECONDS)
            yield from self._answer()
        if self._stands and (self._unclear or self._due < math.inf):
            self._due = 0.0
            yield from self._news()
            if self._taking is not None:
                self._taking.join(REST_SECONDS)
                yield from self._answer(last=True)

    def _at_end(self, log: RunLog) -> Generator[Event]:
        """Yield which rank the stacks name that were kept as another had waited in vain."""
        if any(one.end and one.end.stacks for one in log.node_runs.values()):
            self._work()
            result, self._result = self._result, None
            if result and result.verdict and result.verdict.ranks:
                yield HangExplained(result=result)

    def _unexplained(self) -> Notice:
        text, hint = "no stacks of its ranks could be had", f"clusterctl dump {self._run}"
        return Notice(text=text, level="warning", hint=hint)


def explainer(nodes: Nodes, run: str, cluster: Cluster) -> HangExplainer:
    """Return what explains the hangs of a run, over the connections that there are."""

    def take() -> DumpResult:
        from clusterctl.verbs.dump.dump import DumpQuery, dump  # noqa: PLC0415  (imports much)

        # Kept, for `dump` once the run is over: the nodes' own may have been taken without py-spy.
        query = DumpQuery(keep=True, steady=True)
        return dump(nodes, run, cluster, query, limit=ANSWER_SECONDS, emit=ignore)

    return HangExplainer(run, take)
