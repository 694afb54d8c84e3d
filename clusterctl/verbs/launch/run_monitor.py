"""Follow a run until it is over, and judge how it ended."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from clusterctl.verbs.events import Event, map_events
from clusterctl.verbs.follow import MergedLines, follow
from clusterctl.verbs.launch.join_monitor import JoinMonitor, StartTimeout
from clusterctl.verbs.launch.run_result import RunResult, run_result
from clusterctl.verbs.rpc import Nodes
from clusterctl.verbs.runs.node_answers import read_ends
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.stop import Stopped, stop


@dataclass(slots=True, kw_only=True)
class RunMonitor:
    """What is known of a run while it is followed; following can be interrupted and resumed."""

    nodes: Nodes
    log: RunLog
    """What was read; with `events_only` if no lines are shown."""
    lines: MergedLines | None
    """What is shown of the ranks' lines; None: no log is read, only what happens."""
    remember: Callable[[RunResult], object]
    """Called with how it ended."""
    join_monitor: JoinMonitor | None = None
    """Of a run that was just launched: its ranks have to join."""
    _late: StartTimeout | None = None

    def monitor(self) -> Generator[Event, None, RunResult]:
        """Follow until the run is over; end it when ranks wait in vain for others.

        Yields:
            What `follow` yields, `JoinProgress`, `StartTimeout`, `Stopping`, `Stopped`.
        """
        events = follow(self.nodes, self.log, self.lines)
        if self.join_monitor is not None:
            events = self.join_monitor.watch(events)
        followed = yield from map_events(events, self._judge)
        ends = self.log.node_runs
        if self.lines is None and any(end.state != "finished" for end in ends.values()):
            read_ends(self.nodes, self.log, dict(ends))
        result = run_result(self.log, followed.errors, self._late)
        self.remember(result)
        return result

    def _judge(self, event: Event) -> Generator[Event, None, None]:
        """Yield the event; when ranks are late, end the run."""
        yield event
        if isinstance(event, StartTimeout):
            self._late = event
            reason = f"not joined in time: {', '.join(event.missing)}"
            result = yield from stop(
                self.nodes,
                self.log.run,
                self.log.cluster,
                grace=0.0,
                reason=reason,
                by="start-timeout",
            )
            yield Stopped(result=result)
