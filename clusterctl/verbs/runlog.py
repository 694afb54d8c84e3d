"""What the nodes' `tail` operations send, put together: lines, events, how each part ended.

Every file is read by byte offset: after a broken connection reading goes on where the last whole
line ended, so no line is lost and none comes twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.entry import Entry, Source
from clusterctl.logs.first_cause import FirstCause, NodeReport, first_cause
from clusterctl.logs.lines import Line, LineSplitter
from clusterctl.logs.sanitise import uncoloured
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.answers import Trouble, trouble
from clusterctl.verbs.events import Event, NodeHappened, Said
from clusterctl.verbs.runargs import run_args
from clusterctl.verbs.shape import NOT_OURS, wrong_tail
from clusterctl.wire import Message

EVENTS = "events.jsonl"
KEPT_LINES = 40
"""The last lines of each rank that are kept, to say why it ended."""
KEPT_BYTES = 2000
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
        self._splitters: dict[tuple[str, str], LineSplitter] = {}
        self._ranks: dict[tuple[str, str], int | None] = {}
        self._events_read: dict[str, int] = {}
        self._last: dict[tuple[str, int | None], deque[Line]] = {}

    def follow_request(self, node: str) -> Request:
        """Return the request that reads on from here until the node's part is over."""
        return self._request(node, follow=True)

    def read_request(self, node: str) -> Request:
        """Return the request that reads what there is."""
        return self._request(node, follow=False)

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

    def reports(self) -> list[NodeReport]:
        """Return what is known of each node, for the search of the first cause."""
        return [
            NodeReport(
                node=name,
                events=tuple(events),
                last_lines={
                    rank: tuple(uncoloured(line.text) for line in lines if line.data.strip())
                    for (who, rank), lines in self._last.items()
                    if who == name
                },
            )
            for name, events in self.events.items()
        ]

    def first_cause(self) -> FirstCause | None:
        """Return why the run ended badly, as far as it was read."""
        return first_cause(self.reports())

    def _request(self, node: str, *, follow: bool) -> Request:
        begin = {EVENTS: self._events_read.get(node, 0)}
        for (who, file), splitter in self._splitters.items():
            if who == node:
                # What was a part of a line is read again, from the line's beginning.
                begin[file] = splitter.offset
                self._splitters[who, file] = LineSplitter(splitter.offset)
        args = run_args(self.run, self.cluster, self.cluster.node(node))
        return Request(op="tail", args={**args, "from": begin, "follow": follow})

    def _happened(self, node: str, head: Mapping[str, Any]) -> Iterator[Event]:
        begin, behind = head.get("offset"), head.get("next")
        if isinstance(begin, int) and begin < self._events_read.get(node, 0):
            return
        if isinstance(behind, int):
            self._events_read[node] = behind
        self.events[node].append(head["event"])
        yield NodeHappened(node=node, event=head["event"])

    def _data(self, node: str, message: Message, now: float) -> Iterator[Event | list[Entry]]:
        file, offset = str(message.head["data"]), int(message.head["offset"])
        key = node, file
        splitter = self._splitters.get(key)
        if splitter is None:
            splitter = self._splitters[key] = LineSplitter(offset)
            self._ranks[key] = message.head.get("rank")
        body = message.body
        if offset > splitter.received:
            gap = offset - splitter.received
            text = f"{gap} bytes of {file} are missing: it was changed under the run"
            yield Said(node=node, level="warning", text=text)
            yield self._entries(key, splitter.finish(), now)
            splitter = self._splitters[key] = LineSplitter(offset)
        elif offset < splitter.received:
            body = body[splitter.received - offset :]
        time = float(message.head.get("time") or now) - self._clock_offset(node)
        yield self._entries(key, splitter.feed(body), time)

    def _finish(self, node: str, now: float) -> Iterator[list[Entry]]:
        for key, splitter in list(self._splitters.items()):
            if key[0] == node:
                yield self._entries(key, splitter.finish(), now)

    def _entries(self, key: tuple[str, str], lines: list[Line], time: float) -> list[Entry]:
        source = Source(node=key[0], rank=self._ranks[key])
        kept = self._last.setdefault((source.node, source.rank), deque(maxlen=KEPT_LINES))
        kept.extend(_cut(line) for line in lines[-KEPT_LINES:] if line.ending != "\r")
        return [Entry(source, line, time) for line in lines]

    def _clock_offset(self, node: str) -> float:
        return NodeReport(node=node, events=self.events[node]).clock[0]


def _cut(line: Line) -> Line:
    """Return a line without what nobody reads of it."""
    if len(line.data) <= KEPT_BYTES:
        return line
    return line._replace(data=line.data[:KEPT_BYTES] + b" ...")
