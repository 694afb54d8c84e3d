"""Follow a run until it is over, and judge how it ended."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import InitVar, dataclass, field

from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.plan import Plan
from clusterctl.verbs.events import Event, relay
from clusterctl.verbs.follow import Lines, follow
from clusterctl.verbs.gathering import Gatherer, StartTimeout
from clusterctl.verbs.nodes import Nodes
from clusterctl.verbs.outcome import Ended, outcome
from clusterctl.verbs.runlog import RunLog
from clusterctl.verbs.stop import Stopped, stop


@dataclass(slots=True, kw_only=True)
class Attendance:
    """What is known of a run while it is followed; following can be interrupted and go on."""

    nodes: Nodes
    run: str
    cluster: Cluster
    lines: Lines
    plan: InitVar[Plan | None] = None
    """Of a run that was just launched: its ranks have to join."""
    log: RunLog = field(init=False)
    _gatherer: Gatherer | None = field(init=False)
    _late: StartTimeout | None = None

    def __post_init__(self, plan: Plan | None) -> None:
        """Begin at the beginning."""
        self.log = RunLog(self.run, self.cluster)
        self._gatherer = Gatherer(plan) if plan is not None else None

    def attend(self) -> Generator[Event, None, Ended]:
        """Follow until the run is over; end it when ranks wait in vain for others.

        Yields:
            What `follow` yields, `Gathering`, `StartTimeout`, `Stopping`, `Stopped`.
        """
        events = follow(self.nodes, self.log, self.lines)
        if self._gatherer is not None:
            events = self._gatherer.watch(events)
        followed = yield from relay(events, self._judge)
        return outcome(self.log, followed.troubles, self._late)

    def _judge(self, event: Event) -> Generator[Event, None, None]:
        """Yield the event; when ranks are late, end the run."""
        yield event
        if isinstance(event, StartTimeout):
            self._late = event
            reason = f"not joined in time: {', '.join(event.missing)}"
            steps = stop(self.nodes, self.run, self.cluster, grace=0.0, reason=reason)
            result = yield from steps
            yield Stopped(result=result)
