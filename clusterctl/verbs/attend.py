"""Follow a run that was just launched until it is over, and judge how it ended."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from clusterctl.verbs.events import Event, relay
from clusterctl.verbs.follow import Lines, follow
from clusterctl.verbs.gathering import Gatherer, StartTimeout
from clusterctl.verbs.launch import Launched
from clusterctl.verbs.nodes import Nodes
from clusterctl.verbs.outcome import Ended, outcome
from clusterctl.verbs.runlog import RunLog
from clusterctl.verbs.stop import Stopped, stop


@dataclass(slots=True, kw_only=True)
class Attendance:
    """What is known of a run while it is followed; following can be interrupted and go on."""

    launched: Launched
    lines: Lines
    log: RunLog = field(init=False)
    _gatherer: Gatherer = field(init=False)
    _late: StartTimeout | None = None

    def __post_init__(self) -> None:
        """Begin at the beginning."""
        self.log = RunLog(self.launched.plan.run, self.launched.cluster)
        self._gatherer = Gatherer(self.launched.plan)

    def attend(self, nodes: Nodes) -> Generator[Event, None, Ended]:
        """Follow until the run is over; end it when ranks wait in vain for others.

        Yields:
            What `follow` yields, `Gathering`, `StartTimeout`, `Stopping`, `Stopped`.
        """
        events = self._gatherer.watch(follow(nodes, self.log, self.lines))
        followed = yield from relay(events, lambda event: self._judge(nodes, event))
        return outcome(self.log, followed.troubles, self._late)

    def _judge(self, nodes: Nodes, event: Event) -> Generator[Event, None, None]:
        """Yield the event; when ranks are late, end the run."""
        yield event
        if isinstance(event, StartTimeout):
            self._late = event
            reason = f"not joined in time: {', '.join(event.missing)}"
            run, cluster = self.log.run, self.log.cluster
            result = yield from stop(nodes, run, cluster, grace=0.0, reason=reason)
            yield Stopped(result=result)
