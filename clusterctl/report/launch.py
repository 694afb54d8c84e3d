"""Prints a launch: check, sync, plan, start, the ranks that join, and the end; text or JSON."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from clusterctl.checks.wording import counted
from clusterctl.errors import ClusterError, Interrupted, LaunchRefused
from clusterctl.inventory.ranges import name_hosts
from clusterctl.logs import ranks
from clusterctl.plan.plan import NodePlan, Plan, Variable
from clusterctl.report.check import print_check, print_code_check, problems, summary
from clusterctl.report.console import Progressing, Screen, listed, safe_text
from clusterctl.report.copies import deletions
from clusterctl.report.follow import EventPrinter
from clusterctl.report.lines import JsonLines, LinePrinter
from clusterctl.report.quarantine import show_quarantined
from clusterctl.report.status import (
    END_THE_REST,
    show_cause,
    show_no_restart,
    show_time_over,
    unanswered,
)
from clusterctl.report.stop import show_stop
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint
from clusterctl.verbs.dump.explain import HangExplained
from clusterctl.verbs.events import CopyProgress, Event, Progress
from clusterctl.verbs.follow import LogLines, Tick
from clusterctl.verbs.launch.join_monitor import JoinProgress, StartTimeout
from clusterctl.verbs.launch.launch import Checked, Planned
from clusterctl.verbs.launch.run_result import RunResult
from clusterctl.verbs.launch.sync_code import Synced
from clusterctl.verbs.preflight.check import CheckResult
from clusterctl.verbs.resume import CheckpointChosen
from clusterctl.verbs.stop import Stopped, Stopping, StopResult
from clusterctl.verbs.sync.result import SyncResult
from clusterctl.wire import SCHEMA, plain

_LONG_SECONDS = 60.0
"""After which a launch that no rank has joined may be one of a program that joins nothing."""
_SHOWN = 8
"""Most nodes that a line tells the ranks of, and most ranks that are missing."""


@dataclass(slots=True, kw_only=True)
class TerminalDisplay:
    """Shows a launch on a terminal or in a log: log lines on stdout, the rest on stderr."""

    screen: Screen
    lines: LinePrinter
    _events: EventPrinter = field(init=False)
    _moving: Progressing = field(init=False)

    def __post_init__(self) -> None:
        """Make what prints the events of the run."""
        self._events = EventPrinter(screen=self.screen, lines=self.lines)
        moves = self.screen.err.is_terminal and not self.screen.quiet
        status = self.screen.err.status("") if moves else None
        self._moving = Progressing(screen=self.screen, status=status)

    def ended(self, ended: RunResult) -> None:
        """Print how the run ended, and why."""
        console = self.screen.err
        view = ended.view
        if self.screen.quiet and ended.exit_code == 0:
            return
        style = "green" if ended.exit_code == 0 else "bold red"
        console.print(safe_text(f"{view.run}: {view.state}{_how(ended)}", style))
        if view.first_cause is not None:
            show_cause(console, view.first_cause)
        show_no_restart(console, view)
        show_quarantined(console, view)
        show_time_over(console, view)
        for answer in view.silent:
            console.print(safe_text(f"{answer.node.name}: {answer.error}", "yellow"))
        if view.silent:
            console.print(safe_text(f"hint: {END_THE_REST.format(run=view.run)}"))

    def refused(self, error: ClusterError) -> None:
        """Print nothing: the caller prints the error itself."""

    def stopped(self, result: StopResult) -> None:
        """Print the nodes where the run is verified as stopped, and what is left."""
        show_stop(self.screen.err, result)

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Progress | CopyProgress):
            self._moving.show(event)
        elif isinstance(event, JoinProgress) and self.screen.err.is_terminal:
            self._moving.move(_join_progress(event))
        elif not isinstance(event, Tick):
            if not isinstance(event, LogLines) or self.screen.out.is_terminal:
                self.quiet()
            if not (self.screen.quiet and _is_well(event)):
                self._say(event)

    def _say(self, event: Event) -> None:
        console = self.screen.err
        match event:
            case Checked(verdict=verdict, after_sync=True):
                print_code_check(console, verdict)
            case Checked(verdict=verdict):
                _print_checked(console, verdict)
            case Synced(synced=synced):
                _print_synced(console, synced)
            case CheckpointChosen(chosen=chosen):
                console.print(safe_text(_chosen(chosen)))
            case Planned(plan=plan):
                console.print(safe_text(_planned(plan)))
            case JoinProgress(quiet=quiet, missing=missing) if quiet or not missing:
                console.print(safe_text(_join_progress(event)))
            case StartTimeout(seconds=seconds, missing=missing):
                text = f"not joined within {seconds:g} s: {', '.join(missing)}; stopping the run"
                console.print(safe_text(text, "red"))
            case Stopped(result=result):
                self.stopped(result)
            case Stopping(node=node, stage=stage):
                console.print(safe_text(f"{node}: {stage}", "dim"))
            case _:
                self._events.show(event)

    def quiet(self) -> None:
        """Remove the progress line."""
        self._moving.quiet()


def _is_well(event: Event) -> bool:
    """Tell whether an event only tells that all goes as planned."""
    if isinstance(event, Checked):
        return not problems(event.verdict)
    return isinstance(event, Synced | CheckpointChosen | Planned | JoinProgress | Stopping)


def _how(ended: RunResult) -> str:
    """Return what ended the run, unless the state already tells that."""
    if (ended.view.state, ended.ended_by) in {("lost", "lost"), ("stopped", "stop")}:
        return ""
    if ended.view.state == "unreachable":
        return f" ({unanswered(ended.view)}: how it ended is unknown)"
    unknown = ended.ended_by == "unknown"
    return " (how it ended is unknown)" if unknown else f" (ended by {ended.ended_by})"


def _print_checked(console: Console, verdict: CheckResult) -> None:
    """Print the findings; one line if there are none to act on."""
    if problems(verdict):
        print_check(console, verdict)
    else:
        console.print(safe_text(summary(verdict)))


def _chosen(chosen: ChosenCheckpoint) -> str:
    step = "" if chosen.step is None else f", step {chosen.step}"
    if not chosen.verified_on:
        verified = "each node verifies it before a rank loads it"
        return f"checkpoint {chosen.path} ({chosen.format}{step}): {verified}"
    read = name_hosts(chosen.verified_on)
    fit = "complete" if not chosen.doubts else "structure complete, content not fully verified"
    return f"checkpoint {chosen.path} ({chosen.format}{step}): {fit}; read by {read}"


def _print_synced(console: Console, synced: SyncResult) -> None:
    code = f"commit {synced.commit[:12]}" if synced.commit else "no commit"
    changes = " with uncommitted changes" if synced.dirty else ""
    good = sum(1 for node in synced.nodes if node.ok)
    files, nodes = counted(synced.files, "file"), counted(len(synced.nodes), "node")
    console.print(safe_text(f"synced: {files}, {code}{changes}, on {good} of {nodes}"))
    for text in deletions(synced):
        console.print(safe_text(text))


def _planned(plan: Plan) -> str:
    parts = ", ".join(f"{node.node} ({ranks.name_ranks(node.ranks)})" for node in plan.nodes)
    if len(plan.nodes) > _SHOWN:
        parts = name_hosts(node.node for node in plan.nodes)
    where = f"{plan.master_address}:{plan.master_port}"
    count = counted(plan.world_size, "rank")
    alone = ", a single node" if len(plan.nodes) == 1 else ""
    standing_by = f"; spare: {name_hosts(node.node for node in plan.spares)}" if plan.spares else ""
    return f"{plan.run}: {plan.launcher}, {count}: {parts}{alone}; master {where}{standing_by}"


def _join_progress(event: JoinProgress) -> str:
    verb = "has" if event.total == 1 else "have"
    text = f"{event.joined} of {counted(event.total, 'rank')} {verb} joined"
    if not event.missing:
        return text
    missing = listed(event.missing, _SHOWN)
    # Fewer names than ranks: they are nodes.
    of_nodes = len(event.missing) < event.total - event.joined
    whose = "the launcher of " if of_nodes else ""
    never = not event.joined and event.seconds >= _LONG_SECONDS
    note = " (a program without torch.distributed never joins)" if never else ""
    return f"waiting: {text} after {event.seconds:.0f} s, missing: {whose}{missing}{note}"


class JsonDisplay:
    """Shows a launch to a program, as JSON Lines."""

    def ended(self, ended: RunResult) -> None:
        """Print how the run ended."""
        _print({"kind": ended.kind, **ended.document()})

    def refused(self, error: ClusterError) -> None:
        """Print why no run was started."""
        by = error.by if isinstance(error, LaunchRefused | Interrupted) else "usage"
        document = {"exit_code": error.exit_code, "ended_by": by, "message": str(error)}
        _print({"kind": "ended", "run": None, "state": None, **document})

    def stopped(self, result: StopResult) -> None:
        """Print the result of stopping the run."""
        _print({"kind": "stopped", **plain(result)})

    def quiet(self) -> None:
        """Do nothing: there is no progress line."""

    def show(self, event: Event) -> None:
        """Print one event."""
        match event:
            case LogLines(lines=lines):
                JsonLines(sys.stdout).show(lines)
            case Checked(verdict=verdict):
                _print({"kind": event.kind, **verdict.document()})
            case Synced(synced=synced):
                _print({"kind": event.kind, **synced.document()})
            case Planned(plan=plan):
                _print({"kind": event.kind, **plain(plan)})
            case HangExplained():
                _print({"kind": event.kind, **event.document()})
            case Stopped(result=result):
                self.stopped(result)
            case Tick() | Progress() | CopyProgress():
                return
            case _:
                _print({"kind": event.kind, **plain(event)})


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": SCHEMA, **document}) + "\n")
    sys.stdout.flush()


def show_plan(screen: Screen, plan: Plan) -> None:
    """Print a plan on stdout."""
    console = screen.out
    nodes = counted(len(plan.nodes), "node")
    everywhere = (*plan.nodes, *plan.spares)
    console.print(safe_text(f"run {plan.run}: {counted(plan.world_size, 'rank')} on {nodes}"))
    for setting in plan.settings:
        text = f"  {setting.name} = {setting.value}"
        console.print(safe_text(f"{text}  ({setting.origin})"), soft_wrap=True)
    described = {node.node: _lines(node) for node in everywhere}
    common = [
        line
        for line in described[plan.nodes[0].node]
        if len(everywhere) > 1 and all(line in lines for lines in described.values())
    ]
    if common:
        _show(console, "every node", common)
    for node in everywhere:
        where = f"{node.address} on {node.interface}"
        whose = "a spare node" if node in plan.spares else ranks.name_ranks(node.ranks)
        title = f"{node.node}: {whose} ({node.device}), {where}"
        _show(console, title, [line for line in described[node.node] if line not in common])


def _show(console: Console, title: str, lines: Sequence[str]) -> None:
    console.print()
    console.print(safe_text(title))
    # Not in columns: the values must stay exact on a narrow terminal and in a file, too.
    for line in lines:
        console.print(safe_text(f"  {line}"), soft_wrap=True)


def _lines(node: NodePlan) -> list[str]:
    return [
        f"processes: {node.procs} ({node.procs_origin})",
        f"in {node.workdir}",
        shlex.join(node.command_line),
        *((f"then: {shlex.join(node.driver)}",) if node.driver else ()),
        *(f"{variable.name}={_value(variable)}  ({variable.origin})" for variable in node.env),
    ]


def _value(variable: Variable) -> str:
    if variable.value is None:
        return "<set at start>"
    return shlex.quote(variable.value) if variable.value else ""
