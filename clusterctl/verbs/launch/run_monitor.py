"""Follow a run until it is over, and judge how it ended."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field

from clusterctl.errors import NodeError
from clusterctl.verbs.dump.bring_py_spy import PySpyBringer
from clusterctl.verbs.dump.explain import HangExplainer, explainer
from clusterctl.verbs.events import Emit, Event
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
    remember: Callable[[RunResult], RunResult]
    """Called with how it ended; returns it with what is to be shown, too."""
    join_monitor: JoinMonitor | None = None
    """Of a run that was just launched: its ranks have to join."""
    _late: StartTimeout | None = None
    _stop_ordered: bool = False
    _errors: dict[str, NodeError] = field(default_factory=dict)
    """Nodes whose part could not be read to its end, and why."""
    _bringer: PySpyBringer = field(init=False)
    _explainer: HangExplainer = field(init=False)
    """Outlives an interrupted `run`: what was explained is not explained again."""

    def __post_init__(self) -> None:
        """Be ready to explain a hang."""
        self._bringer = PySpyBringer(self.nodes, self.log.run)
        self._explainer = explainer(self.nodes, self.log.run, self.log.cluster)

    def run(self, *, emit: Emit) -> RunResult:
        """Follow until the run is over; end it when ranks wait in vain for others.

        Emits:
            What `stream` yields, `JoinProgress`, `StartTimeout`, `Stopping`, `Stopped`.
        """
        with closing(self.stream()) as events:
            for event in events:
                self.see(event, emit=emit)
                self.stop_late(emit=emit)
        return self.end()

    def stream(self) -> Generator[Event]:
        """Yield what `follow` yields, and why the run is hung if it is.

        Each event is for `see`, and then for `stop_late`.
        """
        self._errors = {}
        events = follow(self.nodes, self.log, self.lines, errors=self._errors)
        return self._explainer.over(events, self.log)

    def see(self, event: Event, *, emit: Emit) -> None:
        """Emit an event with what it tells about who has joined, and that ranks are late."""
        if self.join_monitor is None:
            emit(event)
            return
        self.join_monitor.see(event, emit=emit)
        if self.join_monitor.settled:
            self._bringer.begin(self.log.cluster)
        for notice in self._bringer.notices():
            emit(notice)
        late = self.join_monitor.timeout()
        if late is not None:
            self._late = late
            emit(late)

    def stop_late(self, *, emit: Emit) -> None:
        """End a run whose ranks are late, once."""
        if self._late is None or self._stop_ordered:
            return
        self._stop_ordered = True
        result = stop(
            self.nodes,
            self.log.run,
            self.log.cluster,
            grace=0.0,
            reason=f"not joined in time: {', '.join(self._late.missing)}",
            by="start-timeout",
            emit=emit,
        )
        emit(Stopped(result=result))

    def end(self) -> RunResult:
        """Return how the run ended, once the stream is over."""
        ends = self.log.node_runs
        if self.lines is None and any(end.state != "finished" for end in ends.values()):
            read_ends(self.nodes, self.log, dict(ends))
        return self.remember(run_result(self.log, self._errors, self._late))
