"""What the nodes' `tail` operations send, put together: lines, events, how each part ended.

Every file is read by byte offset: after a broken connection reading goes on where the last whole
line ended, so no line is lost and none comes twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.entry import Entry, Source
from clusterctl.logs.first_cause import FirstCause, NodeReport, first_cause
from clusterctl.logs.lines import Line, LineSplitter
from clusterctl.logs.sanitise import uncoloured
from clusterctl.plan.nested import once_a_node
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.answers import Trouble, trouble
from clusterctl.verbs.events import Event, NodeHappened, Said
from clusterctl.verbs.runargs import run_args
from clusterctl.verbs.shape import NOT_OURS, wrong_tail
from clusterctl.wire import Message

EVENTS = "events.jsonl"
KEPT_LINES = 100
"""The last lines of each rank that are kept, to tell why it ended."""
KEPT_BYTES = 12 * 1024
"""Of all of them together: there may be thousands of ranks."""
LINE_BYTES = 2000
"""Of each of them: a line may be a megabyte long, and is to be read by a person."""
END_BYTES = 16 * 1024
"""Of each log that are read to say why a run ended."""


class RunLog:
    """A run's logs and events, as far as they were read."""

    def __init__(self, run: str, cluster: Cluster) -> None:
        """Know nothing yet."""
        self.run = run
        self.cluster = cluster
        self.events: dict[str, list[Mapping[str, Any]]] = {n.name: [] for n in cluster.nodes}
        self.parts: dict[str, Mapping[str, Any]] = {}
        """The NodeRun of each node whose part has been read to its end."""
        self._strange: dict[str, str] = {}
        """What is wrong with what a node said of its part at the end."""
        self._logs: dict[str, dict[str, _LogFile]] = {n.name: {} for n in cluster.nodes}
        """By node and file."""
        self._events_read: dict[str, int] = {}
        self.goes_on = False
        """Reading on comes next: a line without its end is kept until then."""
        self._cut = False
        """Logs are read from somewhere within."""
        self._nested = False
        """It was told that ranks start a launcher each."""
        self._clocks: dict[str, float] = {}
        """Seconds that each node's clock is ahead of the master's."""

    def follow_request(self, node: str) -> Request:
        """Return the request that reads on from here until the node's part is over."""
        return self._request(node, follow=True)

    def read_request(self, node: str, *, lines: int = 0) -> Request:
        """Return the request that reads what there is; with `lines` at least the last so many."""
        request = self._request(node, follow=False)
        self._cut = bool(lines)
        return replace(request, args={**request.args, "lines": lines}) if lines else request

    def go_on(self) -> None:
        """Forget that what there is was read to its end: reading on comes next."""
        self.parts.clear()
        self.goes_on = self._cut = False

    def end_request(self, node: str, part: Mapping[str, Any]) -> Request:
        """Return the request for the events and the end of each log of a node's part."""
        args = run_args(self.run, self.cluster, self.cluster.node(node))
        logs = ["launcher.log", *(f"ranks/{rank['rank']}.log" for rank in part.get("ranks", ()))]
        begin = {EVENTS: 0, **dict.fromkeys(logs, -END_BYTES)}
        return Request(op="tail", args={**args, "from": begin, "follow": False})

    def take(self, node: str, message: Message, *, now: float) -> Iterator[Event | list[Entry]]:
        """Take one message of a node's `tail`; `now` is the time of day.

        Yields:
            The lines that are whole now, what happened on the node, and gaps.
        """
        head = message.head
        strange = wrong_tail(head)
        if strange and "node" in head:
            self._strange[node] = strange  # said by `trouble`: the node's stream ends with it
        elif strange:
            yield Said(node=node, level="warning", text=f"{NOT_OURS}: {strange}")
        elif "event" in head:
            yield from self._happened(node, head)
        elif "data" in head:
            yield from self._data(node, message, now)
        elif "node" in head:
            self.parts[node] = head["node"]
            yield from self._finish(node, now)

    def trouble(self, reply: Reply) -> Trouble | None:
        """Return why a node's part was not read to its end; None: it was."""
        wrong = trouble(reply)
        if wrong is not None or reply.node in self.parts:
            return wrong
        message = f"{NOT_OURS}: {self._strange.get(reply.node) or 'it says nothing of its part'}"
        return Trouble(node=reply.node, kind="bad-output", message=message, answered=True)

    @property
    def finished(self) -> bool:
        """Every node's part was read to its end and has ended well."""
        return all(self.parts.get(name, {}).get("state") == "finished" for name in self.events)

    def reports(self) -> list[NodeReport]:
        """Return what is known of each node, for the search of the first cause."""
        return [
            NodeReport(
                node=name,
                events=tuple(events),
                last_lines={log.source.rank: log.last_lines for log in self._logs[name].values()},
            )
            for name, events in self.events.items()
        ]

    def first_cause(self) -> FirstCause | None:
        """Return why the run ended badly, as far as it was read."""
        return first_cause(self.reports())

    def _request(self, node: str, *, follow: bool) -> Request:
        begin = {EVENTS: self._events_read.get(node, 0)}
        for file, log in self._logs[node].items():
            # What was a part of a line is read again, from the line's beginning.
            begin[file] = log.splitter.offset
            log.splitter = LineSplitter(log.splitter.offset)
        args = run_args(self.run, self.cluster, self.cluster.node(node))
        return Request(op="tail", args={**args, "from": begin, "follow": follow})

    def _happened(self, node: str, head: Mapping[str, Any]) -> Iterator[Event]:
        begin, behind = head.get("offset"), head.get("next")
        if isinstance(begin, int) and begin < self._events_read.get(node, 0):
            return
        if isinstance(behind, int):
            self._events_read[node] = behind
        self.events[node].append(head["event"])
        if head["event"]["kind"] == "clock":
            self._clocks[node] = NodeReport(node=node, events=(head["event"],)).clock[0]
        yield NodeHappened(node=node, event=head["event"])
        if head["event"]["kind"] == "nested-launcher" and not self._nested:
            self._nested = True
            yield self._warn_of_nested(node, head["event"])

    def _warn_of_nested(self, node: str, event: Mapping[str, Any]) -> Said:
        """Say that ranks start a launcher each, and what to type instead."""
        what = f"rank {event.get('rank')} started {event.get('launcher')} of its own"[:100]
        once = once_a_node(self.cluster.job.command)
        text = f"{what}, and so may every rank; to run the script once a node: {once}"
        return Said(node=node, level="warning", text=text)

    def _data(self, node: str, message: Message, now: float) -> Iterator[Event | list[Entry]]:
        file, offset = str(message.head["data"]), int(message.head["offset"])
        log = self._logs[node].get(file)
        if log is None:
            source = Source(node=node, rank=message.head.get("rank"))
            log = self._logs[node][file] = _LogFile(source, offset)
            log.begins_within = self._cut and offset > 0
        body = message.body
        received = log.splitter.received
        dropped = message.head.get("dropped") or 0
        if dropped > 0:
            text = f"{dropped} bytes of {file} were dropped: its disk was nearly full"
            yield Said(node=node, level="warning", text=text)
        if offset > received:
            text = f"{offset - received} bytes of {file} are missing: it was changed under the run"
            if dropped <= 0:
                yield Said(node=node, level="warning", text=text)
            yield log.entries(log.splitter.finish(), now)
            log.splitter = LineSplitter(offset)
        elif offset < received:
            body = body[received - offset :]
        time = float(message.head.get("time") or now) - self._clocks.get(node, 0.0)
        yield log.entries(log.splitter.feed(body), time)

    def _finish(self, node: str, now: float) -> Iterator[list[Entry]]:
        if self.goes_on and not self.parts[node].get("end"):
            return
        for log in self._logs[node].values():
            if rest := log.splitter.finish():
                yield log.entries(rest, now)


class _LogFile:
    """One log of a node, as far as it was read."""

    __slots__ = ("_last", "_size", "begins_within", "source", "splitter")

    def __init__(self, source: Source, offset: int) -> None:
        self.source = source
        self.splitter = LineSplitter(offset)
        self._last: deque[bytes] = deque()
        self._size = 0
        self.begins_within = False
        """The first bytes are of a line that began before, and are left out."""

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, those of progress bars left out."""
        return tuple(uncoloured(data.decode("utf-8", "backslashreplace")) for data in self._last)

    def entries(self, lines: list[Line], time: float) -> list[Entry]:
        """Return these lines as entries, and keep the last of them."""
        if self.begins_within and lines:
            lines, self.begins_within = lines[1:], False
        source, last = self.source, self._last
        for line in lines[-KEPT_LINES:]:
            if line.ending == "\r" or not line.data.strip():
                continue
            data = _cut(line.data)
            self._size += len(data)
            last.append(data)
        while self._size > KEPT_BYTES or len(last) > KEPT_LINES:
            self._size -= len(last.popleft())
        return [Entry(source, line, time) for line in lines]


def _cut(data: bytes) -> bytes:
    """Return a line without what nobody reads of it."""
    return data if len(data) <= LINE_BYTES else data[:LINE_BYTES] + b" ..."
