"""A run as Python sees it: its state, lines and events, its end, its checkpoints."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import CouldNotTell, NodeError, NotEnded
from clusterctl.inventory.cluster import Cluster
from clusterctl.safe_text import keep_colors
from clusterctl.verbs.events import Emit, Event, Notice
from clusterctl.verbs.runs.records import Records, RunRecord

if TYPE_CHECKING:
    from clusterctl.logs.deduplicate import LineSink
    from clusterctl.plan.plan import Plan
    from clusterctl.transport.pool import Pool
    from clusterctl.verbs.checkpoints.choose import ListedCheckpoint
    from clusterctl.verbs.compare.story import Story
    from clusterctl.verbs.dump.dump import DumpQuery, DumpResult
    from clusterctl.verbs.launch.run_monitor import RunMonitor
    from clusterctl.verbs.launch.run_result import RunResult
    from clusterctl.verbs.logs import LogQuery
    from clusterctl.verbs.runs.history import History
    from clusterctl.verbs.runs.run_status import RunStatus
    from clusterctl.verbs.stop import StopResult
    from clusterctl.verbs.top.top import Watcher

OnEvent = Emit
"""Hears the events of a method while it runs; what it raises ends the method."""

logger = logging.getLogger("clusterctl")


def log_warning(event: Event) -> None:
    """Log a warning."""
    if isinstance(event, Notice) and event.level != "info":
        logger.warning("%s%s", f"{event.node}: " if event.node else "", event.text)


class LogLine(NamedTuple):
    """A line that a rank printed, or a node's launcher; `str()` is as the command shows it."""

    time: float
    """Seconds since 1970, on the master's clock."""
    node: str
    rank: int | None
    """None: the node's launcher printed it."""
    text: str
    """As it was printed, without its end."""

    def __str__(self) -> str:
        """Return `[node:rank] text`, safe to print."""
        where = self.node if self.rank is None else f"{self.node}:{self.rank}"
        return f"[{where}] {keep_colors(self.text)}"


class Run:
    """A run, live or over; a session returns it. It does not depend on the session."""

    def __init__(
        self,
        run: str,
        cluster: Cluster,
        *,
        pool: Callable[[], Pool],
        records: Records,
        record: RunRecord | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Keep what is known of it.

        Args:
            run: its id.
            cluster: the nodes that run it, in launch order, and its job.
            pool: returns the connections to them.
            records: what this machine remembers of runs.
            record: what it remembers of this one.
            plan: of a run that was just launched.
        """
        self.id = run
        self.cluster = cluster
        self.record = record
        self._pool = pool
        self._records = records
        self._plan = plan
        self._made = time.time()
        """Of a run that was just launched: when its parts had been started on all nodes."""

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    @property
    def ranks(self) -> tuple[tuple[int, str], ...]:
        """The ranks of a run that was just launched, each with its node; else none are known."""
        nodes = self._plan.nodes if self._plan else ()
        return tuple((rank, node.node) for node in nodes for rank in node.ranks)

    def status(self, *, on_event: OnEvent | None = None) -> RunStatus:
        """Ask every node what the run is doing, or how it ended and why."""
        from clusterctl.verbs.launch.run_result import corrected_end, remember_seen
        from clusterctl.verbs.status import status

        emit = on_event or log_warning
        view = status(self._pool(), self.id, self.cluster, self._history, emit=emit)
        if self.record is None:
            return self._with_quarantine(view)
        view = self._with_quarantine(view.with_remembered(self._records.end(self.record)))
        remember_seen(self._records, self.record, view)
        corrected = corrected_end(view)
        if corrected is None:
            return view
        self._records.write_end(self.record, corrected)
        return replace(view, remembered=corrected)

    def story(self, *, metrics: str | None = None, on_event: OnEvent | None = None) -> Story:
        """Return all that is known of it: status, record, what happened, and its metrics.

        Args:
            metrics: where its metrics are, from the workdir; None: a `metrics.jsonl` where its
                checkpoints are, or in `out`.
            on_event: called with each event while the nodes are asked.
        """
        from clusterctl.verbs.compare.story import tell_story

        emit, view = on_event or log_warning, self.status(on_event=on_event)
        return tell_story(
            self._pool(),
            self.cluster,
            view,
            self.record,
            self._records,
            metrics=metrics,
            emit=emit,
        )

    def logs(
        self,
        *,
        follow: bool = False,
        node: str | None = None,
        rank: str | int | None = None,
        tail: int | None = None,
        since: str | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Yield the lines of all ranks, merged by time.

        Args:
            follow: keep reading until the run is over.
            node: only of these nodes: names and ranges.
            rank: only of these ranks, such as `0-3,7`.
            tail: only the last so many lines; with `follow` it continues from there.
            since: only lines since then: `90s`, `10m`, `2h`, `1d`, or an ISO time.
            grep: only lines that match this regular expression.

        Raises:
            CouldNotTell: at the end: a node's lines could not be read, and why.
            UsageError: an option cannot be read, or the run has no such node or rank.
        """
        from clusterctl.logs.deduplicate import PassThrough
        from clusterctl.verbs.logs import LogQuery

        query = LogQuery(
            follow=follow,
            node=node,
            rank=rank,
            tail=tail,
            since=since,
            grep=grep,
            sink=PassThrough,
        )
        errors: dict[str, NodeError] = {}
        with closing(self._log_events(query, errors)) as events:
            for event in events:
                yield from lines_of(event)
        if errors:
            listed = (f"{error.node}: {error}" for error in errors.values())
            raise CouldNotTell(f"not all logs of {self.id} were read:\n" + "\n".join(listed))

    def _log_events(self, query: LogQuery, errors: dict[str, NodeError]) -> Generator[Event]:
        """Yield what `logs` is made of; `errors` gets the nodes that could not be read."""
        from clusterctl.verbs.logs import show_logs

        return show_logs(self._pool(), self.id, self.cluster, query, errors=errors)

    def collect(
        self,
        folder: str | os.PathLike[str],
        *,
        node: str | None = None,
        on_event: OnEvent | None = None,
    ) -> dict[str, NodeError]:
        """Copy the logs of every node, or of some, to `folder/NODE/`, byte for byte.

        Returns:
            The nodes whose logs could not be read, and why.
        """
        from clusterctl.verbs.logs import collect, run_log

        log = run_log(self.id, self.cluster, node)
        return collect(self._pool(), log, Path(folder), emit=on_event or log_warning)

    def events(self) -> Iterator[Event]:
        """Yield what happens until the run is over, from its beginning; `RunResult` comes last.

        No log is read: `logs` yields the lines. A run that was just launched is ended if its ranks
        do not join in time.
        """
        from clusterctl.verbs.follow import Tick

        monitor = self._monitor()
        news: list[Event] = []
        with closing(monitor.stream()) as events:
            for event in events:
                for step in (partial(monitor.see, event), monitor.stop_late):
                    step(emit=news.append)
                    yield from (one for one in news if not isinstance(one, Tick))
                    news.clear()
        yield monitor.end()

    def wait(self, *, timeout: float | None = None, on_event: OnEvent | None = None) -> RunResult:
        """Wait until the run is over; return its exit code and the first cause of a failure.

        Args:
            timeout: seconds to wait at most.
            on_event: called with what `events` yields.

        Raises:
            NotEnded: it was not over in time.
        """
        from clusterctl.verbs.follow import Tick

        until = None if timeout is None else time.monotonic() + timeout

        def show(event: Event) -> None:
            if until is not None and time.monotonic() > until:
                raise NotEnded(f"{self.id}: not over within {timeout:g} s; it keeps running")
            if not isinstance(event, Tick):
                (on_event or log_warning)(event)

        return self._monitor().run(emit=show)

    def dump(
        self, query: DumpQuery | None = None, *, on_event: OnEvent | None = None
    ) -> DumpResult:
        """Return where every rank is: the stacks; of a run that is over, those it kept.

        Raises:
            UsageError: the run has no such node, or the ranks cannot be read.
        """
        from clusterctl.verbs.dump.dump import DumpQuery, dump

        emit = on_event or log_warning
        return dump(self._pool(), self.id, self.cluster, query or DumpQuery(), emit=emit)

    def stop(
        self,
        *,
        grace: float | None = None,
        reason: str | None = None,
        on_event: OnEvent | None = None,
    ) -> StopResult:
        """Stop the run on all its nodes, and verify that nothing of it is left.

        Args:
            grace: seconds until KILL; None: as the job says.
            reason: kept in the nodes' records; None: who asked.
            on_event: called with each event while it stops.
        """
        from clusterctl.verbs.stop import stop

        plan = self.record.plan if self.record else None
        hosts = {node.name: node.host for node in self.cluster.nodes}
        launched = self.record.cluster.nodes if self.record else ()
        moved = {one.name: one.host for one in launched if hosts.get(one.name) != one.host}
        return stop(
            self._pool(),
            self.id,
            self.cluster,
            grace=grace,
            reason=reason,
            plan=plan,
            launched_on=moved,
            emit=on_event or log_warning,
        )

    def checkpoints(self, *, on_event: OnEvent | None = None) -> tuple[ListedCheckpoint, ...]:
        """Return the run's checkpoints, the newest first, by a quick look at their files.

        Raises:
            LaunchRefused: a node did not answer.
        """
        from clusterctl.verbs.checkpoints.choose import list_checkpoints

        emit = on_event or log_warning
        return list_checkpoints(self._pool(), self.cluster, self._history, emit=emit)

    @property
    def _history(self) -> History:
        from clusterctl.verbs.runs.history import history_of, unrecorded

        if self.record is None:
            return unrecorded(self.id)
        return history_of(self.record, self._records.with_id)

    def _monitor(self, sink: LineSink | None = None) -> RunMonitor:
        """Return what follows the run to its end, and can be interrupted and resumed.

        Args:
            sink: decides how lines are shown; None: none are read.
        """
        from clusterctl.verbs.follow import MergedLines
        from clusterctl.verbs.launch.join_monitor import JoinMonitor
        from clusterctl.verbs.launch.run_monitor import RunMonitor
        from clusterctl.verbs.runs.run_log import RunLog

        return RunMonitor(
            nodes=self._pool(),
            log=RunLog(self.id, self.cluster, events_only=sink is None),
            lines=None if sink is None else MergedLines(sink=sink),
            remember=self._remember,
            join_monitor=JoinMonitor(self._plan) if self._plan and self._may_join else None,
        )

    def _watcher(self) -> Watcher:
        """Return what watches the run live, as `top` does."""
        from clusterctl.verbs.top.top import Watcher

        return Watcher(self._pool(), self.id, self.cluster, self._history)

    def _bring_py_spy(self, *, emit: Emit) -> None:
        """Let the nodes look at ranks that poll, as following the run would."""
        from clusterctl.verbs.dump.bring_py_spy import PySpyBringer

        PySpyBringer(self._pool(), self.id).bring_now(self.cluster, emit=emit)

    @property
    def _may_join(self) -> bool:
        """Ranks may still have to join; later, a silent node is no reason to end the run."""
        return self._plan is not None and time.time() <= self._made + self._plan.start_timeout

    def _remember(self, ended: RunResult) -> RunResult:
        """Keep how the run ended, if that is known, and which nodes it blames."""
        if not ended.known:
            return ended
        ended = replace(ended, view=self._with_quarantine(ended.view))
        if self.record is not None:
            when = {"ended": ended.view.ended} if ended.view.ended else {}
            self._records.write_end(self.record, {**ended.document(), **when})
        return ended

    def _with_quarantine(self, view: RunStatus) -> RunStatus:
        from clusterctl.verbs.quarantine.quarantine import with_quarantined

        return with_quarantined(self.cluster, self.record, view, self._records.root)


def lines_of(event: Event) -> Iterator[LogLine]:
    """Yield the lines of an event, and warn of what is missing among them."""
    from clusterctl.verbs.follow import LogLines, NodeLost

    if isinstance(event, LogLines):
        for line in event.lines:
            source = line.sources[0]
            yield LogLine(line.time, source.node, source.rank, line.line.text)
    elif isinstance(event, NodeLost):
        logger.warning("%s: %s; connecting again", event.node, event.message)
    else:
        log_warning(event)
