"""Prints a followed run: its log lines on stdout, its events on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from clusterctl.inventory.ranges import name_hosts
from clusterctl.logs.known_errors import signal_name
from clusterctl.report.console import Screen, safe_text
from clusterctl.report.lines import LinePrinter, duration
from clusterctl.values import dataclass
from clusterctl.verbs.dump.explain import HangExplained
from clusterctl.verbs.events import Event, NodeEvent, Notice, Waiting
from clusterctl.verbs.follow import LogLines, NodeBack, NodeLost
from clusterctl.verbs.logs import Collected

if TYPE_CHECKING:
    from clusterctl.verbs.dump.dump import DumpResult

_HUNG = "hung: no rank has shown a sign of life for long"
_SENTENCES = {
    "late": "late: {message}",
    "before-failed": "{message}",
    "after-failed": "{message}",
    "notify-failed": "could not tell {receiver} of the event {event}: {message}",
}
"""Of events that a node describes in its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPrinter:
    """Prints the events of a run."""

    screen: Screen
    lines: LinePrinter
    of_run: set[tuple[str, str]] = field(default_factory=set)
    """What nodes have told of the run as a whole: kind and number."""

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case LogLines(lines=lines):
                self.lines.show(lines)
            case Notice():
                self.screen.say(event)
            case NodeLost() | NodeBack() | Collected():
                self.screen.say(_notice_of(event))
            case Waiting():
                for text in _waiting(event):
                    self.screen.err.print(safe_text(text, "yellow" if event.nodes else ""))
            case HangExplained(result=result):
                self._explain(result)
            case NodeEvent(
                event={"kind": "hung" | "running-again" | "again" | "waits"} as happened
            ):
                self._show_of_run(happened)
            case NodeEvent(node=node, event=happened):
                sentence = sentence_of(happened)
                if sentence:
                    self.screen.err.print(safe_text(f"{node}: {sentence}", "dim"))
            case _:
                return

    def _show_of_run(self, event: Mapping[str, object]) -> None:
        """Show once what every node reports, as it concerns none of them more than the others."""
        number = event.get("alarm") or (event.get("attempt"), event.get("without"))
        told = (str(event["kind"]), str(number))
        if told not in self.of_run:
            self.of_run.add(told)
            self.screen.err.print(safe_text(sentence_of(event), "yellow"))

    def _explain(self, result: DumpResult) -> None:
        """Show where the ranks of a hung run are, and why; on stderr, as stdout is the log."""
        from clusterctl.report.stacks.dump import show_dump  # noqa: PLC0415  (imports much)

        both = Screen(self.screen.err, self.screen.err)
        show_dump(both, result, every_thread=False, folder=None)


def _notice_of(event: NodeLost | NodeBack | Collected) -> Notice:
    match event:
        case NodeLost(node=node, message=message):
            why = f" ({message})" if message else ""
            text = f"connection lost{why}; the run continues, reconnecting"
            return Notice(node=node, text=text, level="warning")
        case NodeBack(node=node):
            return Notice(node=node, text="reconnected, no log line was lost")
        case Collected(node=node, folder=folder, size=size):
            return Notice(node=node, text=f"{size} bytes in {folder}")


def sentence_of(event: Mapping[str, object]) -> str:  # noqa: PLR0911  (one for each kind)
    """Return a sentence for an event of a node; empty for one that a user need not know."""
    rank = event.get("rank")
    match event.get("kind"):
        case "rank-ended" if event.get("signal"):
            how = signal_name(int(str(event["signal"])))
            return f"rank {rank} was killed by {how}" + (
                " while the run was stopped" if event.get("ordered") else ""
            )
        case "rank-ended" if event.get("exit_code"):
            return f"rank {rank} exited with {event['exit_code']}"
        case "stop-ordered" | "peer-bad-end":
            return f"stopping: {_why_stopping(event)}"
        case "peer-lost" | "peer-left" as kind:
            lost = f"no message from {event.get('peer')}: it counts as lost"
            return lost if kind == "peer-lost" else f"continuing without {event.get('peer')}"
        case "hung" | "running-again" as kind:
            return _HUNG if kind == "hung" else "running again: a rank has shown a sign of life"
        case "straggler":
            share, why = event.get("lost_percent"), event.get("reason")
            place = f", at {event['where']}" if event.get("where") else ""
            return f"the others wait {share} % of the time for rank {rank}{place}: {why}"
        case "straggler-over":
            return f"the others no longer wait for rank {rank}"
        case "waits":
            return f"waiting for a node to join: {event.get('why')}"
        case "again":
            return _next_attempt(event)
        case kind:
            told = {name: event.get(name) for name in ("message", "event", "receiver")}
            return _SENTENCES.get(str(kind), "").format(**told)


def _waiting(event: Waiting) -> Iterator[str]:
    """Yield a line for each holder, with the nodes that it uses."""
    if not event.nodes:
        yield f"the nodes are free, after {duration(event.waited_s)}"
        return
    left = duration(event.limit_s - event.waited_s)
    yield f"waiting for others, {left} more at most; Ctrl-C ends it:"
    for what in dict.fromkeys(event.nodes.values()):
        names = name_hosts(node for node, words in event.nodes.items() if words == what)
        yield f"  {names}: {what}"


def _next_attempt(event: Mapping[str, object]) -> str:
    """Say that a run which failed starts again, and from where."""
    checkpoint, step = event.get("checkpoint"), event.get("step")
    where = "the beginning" if checkpoint is None else f"checkpoint {checkpoint}"
    where = where if step is None else f"checkpoint step {step}"
    number = f"attempt {event.get('attempt')} of {event.get('of')}"
    left = event.get("without")
    without = f", without {', '.join(map(str, left))}" if left and isinstance(left, list) else ""
    when = f"in {wait} s" if (wait := event.get("wait_s")) else "now"
    return f"{number} begins {when}, from {where}{without}: {event.get('why')}"


def _why_stopping(event: Mapping[str, object]) -> str:
    """Say why the run ends on a node: it was ordered to, or the run failed on another node."""
    peer, message = event.get("peer"), event.get("message")
    if not peer:
        return str(event.get("reason") or message or event.get("by"))
    match event.get("by"):
        case "start-timeout":
            return f"start timeout ({peer}): {message}"
        case "lost" if event.get("lost"):
            return f"{peer} lost {event['lost']}"
        case "world" | "hang" | "before":
            return f"{peer}: {message}"
        case _:
            return f"{peer} failed"
