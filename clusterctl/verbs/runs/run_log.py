"""Merges what the nodes' `tail` operations send: lines, events, how each part ended.

Every file is read by byte offset. After a broken connection, reading resumes after the last whole
line, so no line is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.logs.entry import Piece, Source
from clusterctl.logs.first_cause import FirstCause, NodeReport, first_cause
from clusterctl.logs.lines import LineSplitter
from clusterctl.model.from_json import from_json
from clusterctl.model.node_run import NodeRun
from clusterctl.model.tail import invalid_tail
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Event, NodeEvent, Notice
from clusterctl.verbs.rpc import NOT_OURS, bad_output, node_error, run_args
from clusterctl.verbs.runs.event_warnings import unmet_warning, warning_of
from clusterctl.verbs.runs.log_file import LINE_BYTES, LogFile
from clusterctl.verbs.runs.run_state import master_of, set_aside
from clusterctl.verbs.runs.tail_blocks import MESSAGE_LIMIT, TailBlock, tail_blocks, wrong_length
from clusterctl.wire import Message

EVENTS = "events.jsonl"
KEPT_LINES = 100
"""The last lines to keep of each rank: they may tell why it ended."""
END_BYTES = 32 * 1024
"""The end of each log that is read to find why a run ended."""
ENDS = frozenset(
    {
        "peer-bad-end", "peer-joined", "peer-left", "peer-lost", "peer-silent", "start-timeout",
        "supervisor-died", "rank-ended", "launcher-ended", "before-failed",
    }
)  # fmt: skip
"""Events that may show why a run ended."""
EVENTS_LIMIT, LOGS_LIMIT = 4096, 1024
"""Limits for one node."""
UNFINISHED_BYTES = 16 * 1024 * 1024
"""Limit of a node's lines without an end; longer ones are passed on in pieces."""
SMALL_BYTES = UNFINISHED_BYTES // LOGS_LIMIT
"""A shorter line is not counted: all logs together stay below twice the limit."""
INVALID_LIMIT = 100
"""Invalid messages after which a node is not read any more."""
PIECES_LIMIT = 100_000
PIECE_BYTES = 1024
"""Pieces, beyond one for so many bytes, after which it is not: a node cuts into 20,000 at most."""
_TEXTS = ("kind", "by", "peer", "node", "lost", "message")
_NUMBERS = ("rank", "exit_code", "signal", "time", "since", "oom_kills", "cpu_limit_s")


class RunLog:
    """A run's logs and events, as far as they have been read."""

    def __init__(
        self,
        run: str,
        cluster: Cluster,
        *,
        judged: bool = True,
        events_only: bool = False,
        some_nodes: bool = False,
    ) -> None:
        """Start with nothing read.

        Args:
            cluster: the nodes that run it.
            judged: the first cause will be asked for.
            events_only: the nodes are asked for no log.
            some_nodes: the cluster lacks nodes that run it.
        """
        self.run = run
        self.cluster = cluster
        self.events: dict[str, list[Mapping[str, Any]]] = {n.name: [] for n in cluster.nodes}
        self.node_runs: dict[str, NodeRun] = {}
        """The NodeRun of each node whose part has been read to its end."""
        self._invalid: dict[str, str] = {}
        """What is wrong with a node's last answer."""
        self._invalid_counts: dict[str, int] = {}
        """How many invalid messages each node has sent."""
        self._env_init: dict[str, tuple[float, str]] = {}
        """Seconds that each node's `env_init` took."""
        self._room_low: dict[str, float] = {}
        """When each node last had little room for its logs, by its clock."""
        self.late: dict[str, str] = {}
        """What each node's ranks were doing that had not joined when the start was ended."""
        self._clock_events: dict[str, Mapping[str, Any]] = {}
        self._logs: dict[str, dict[str, LogFile]] = {n.name: {} for n in cluster.nodes}
        """By node and file."""
        self._pieces: dict[str, int] = {}
        """How many small pieces each node has sent since it was asked."""
        self._unsummed: dict[str, int] = {}
        """Bytes that came of each node since its unfinished lines were last summed up."""
        self._events_read: dict[str, int] = {}
        self.continues = False
        """More will be read: a line without an end is kept until then."""
        self._kept = KEPT_LINES if judged else 0
        self._events_only = events_only
        self._some_nodes = some_nodes
        self._cut = False
        """Logs are not read from their beginning."""
        self._nested = False
        """The user was warned that each rank starts a launcher."""
        self._unmet: dict[str, Mapping[str, Any]] = {}
        """By node: none of its ranks was seen connected to another node."""
        self._met = False
        """A rank of some node was: it waited there for all others."""
        self._lost: set[str] = set()
        """Nodes without which an elastic run continued; they may join again."""
        self._clocks: dict[str, float] = {}
        """Seconds that each node's clock is ahead of the master's."""
        self._began: dict[str, float] = {}
        """When the last attempt of a run that restarted began on a node, by its clock."""

    def follow_request(self, node: str) -> Request:
        """Return the request that reads from here until the node's part is over."""
        return self._request(node, follow=True)

    def read_request(self, node: str, *, lines: int = 0) -> Request:
        """Return the request for what there is; with `lines`, at least that many last lines."""
        self._cut = bool(lines)
        return self._request(node, lines=lines) if lines else self._request(node)

    def copy_request(self, node: str) -> Request:
        """Return the request for what there is, in an order that suits copying files."""
        return self._request(node, by_file=True, nccl=True)

    def resume_reading(self) -> None:
        """Prepare to read more, after what there was has been read."""
        self.node_runs.clear()
        self.continues = self._cut = False

    def end_request(self, node: str, node_run: NodeRun) -> Request:
        """Return the request for the events and the end of each log of a node's part."""
        args = run_args(self.run, self.cluster, self.cluster.node(node))
        ranks = (f"ranks/{rank.rank}.log" for rank in node_run.ranks)
        begin = {EVENTS: 0, **dict.fromkeys(["launcher.log", *ranks], -END_BYTES)}
        return _tail({**args, "from": begin, "follow": False})

    def take(self, node: str, message: Message, *, now: float) -> Iterator[Event | Piece]:
        """Take one message of a node's `tail`; `now` is the time of day.

        Yields:
            The lines that are whole now, what happened on the node, and gaps.
        """
        if self.is_hopeless(node):
            return
        head = message.head
        error = invalid_tail(head) or wrong_length(message)
        error = error or self._too_many_pieces(node, message)
        if error:
            yield from self._note_invalid(node, error, is_last="node" in head)
        elif "event" in head:
            yield from self._happened(node, head)
        elif "data" in head or "pieces" in head:
            for block in tail_blocks(message, now):
                yield from self._data(node, block)
        elif "node" in head:
            self.node_runs[node] = from_json(NodeRun, head["node"], "node")
            yield from self._finish(node)
            if self.node_runs.keys() >= self.events.keys():
                yield from self._warn_of_unmet()

    def take_from(
        self, stream: MultiStream, node: str, message: Message, *, now: float
    ) -> Iterator[Event | Piece]:
        """Take one message of a stream; drop a node that has sent too many invalid ones."""
        yield from self.take(node, message, now=now)
        if self.is_hopeless(node):
            stream.drop(node)

    def node_error(self, reply: Reply) -> NodeError | None:
        """Return why a node's part was not read to its end; None if it was."""
        if not self.is_hopeless(reply.node):
            error = node_error(reply)
            if error or reply.node in self.node_runs:
                return error
        invalid = self._invalid.get(reply.node) or "it sent no status of the run"
        return bad_output(reply.node, invalid)

    def is_hopeless(self, node: str) -> bool:
        """Tell whether a node has sent too many invalid messages to be read any more."""
        return self._invalid_counts.get(node, 0) > INVALID_LIMIT

    @property
    def finished(self) -> bool:
        """Every node's part was read to its end and has finished."""
        if self._some_nodes:
            return False  # the others may have failed
        aside = self.aside
        ends = (self.node_runs.get(name) for name in self.events if name not in aside)
        return all(end is not None and end.state == "finished" for end in ends)

    @property
    def left_out(self) -> set[str]:
        """The nodes without which the run continued, as those know that have ended."""
        return set_aside(self._in_order).left_out.keys() & self.events.keys()

    @property
    def aside(self) -> set[str]:
        """Those, and the nodes that stood by to the end."""
        aside = set_aside(self._in_order)
        return (aside.left_out.keys() | aside.spares) & self.events.keys()

    def first_cause(self) -> FirstCause | None:
        """Return why the run failed, as far as it was read."""
        aside = self.aside  # their failures end no run
        reports = (
            NodeReport(
                node=name,
                events=(*events, *filter(None, [self._clock_events.get(name)])),
                last_lines={
                    log.source.rank: log.last_lines[self._earlier(name, log) :]
                    for log in self._logs[name].values()
                },
                times={
                    log.source.rank: log.last_times[self._earlier(name, log) :]
                    for log in self._logs[name].values()
                },
                gone=self.node_runs[name].why_gone if name in self.node_runs else "",
                room_low_at=self._room_low.get(name, float("-inf")),
                env_init_s=self._env_init.get(name, (0.0, ""))[0],
                env_init_said=self._env_init.get(name, (0.0, ""))[1],
            )
            for name, events in self.events.items()
            if name not in aside
        )
        return first_cause(reports, master_of(self._in_order.values()))

    @property
    def _in_order(self) -> dict[str, NodeRun]:
        """The parts that were read, in launch order."""
        return {name: self.node_runs[name] for name in self.events if name in self.node_runs}

    def _earlier(self, node: str, log: LogFile) -> int:
        """Return how many last lines are of earlier attempts: events come before logs."""
        began = self._began.get(node)
        if not began:
            return 0
        began -= self._clocks.get(node, 0.0)  # as the times of lines: on the master's clock
        return sum(time < began for time in log.last_times)

    def newcomer(self, event: Mapping[str, Any]) -> str:
        """Take an event of the run; return the node that has joined by it, empty if none has.

        It may be one that was lost, and of which was read before. Only the inventory's nodes count.
        """
        kind, name = event.get("kind"), event.get("peer")
        if kind == "peer-left":
            self._lost.add(str(name))
        if kind != "peer-joined" or not isinstance(name, str) or self._some_nodes:
            return ""
        if name in self.events:
            again = name in self._lost or event.get("standby") is True  # one that was let in
            self._lost.discard(name)
            return name if again else ""
        node = next((one for one in self.cluster.left_out if one.name == name), None)
        if node is None:
            return ""
        self.cluster = self.cluster.with_nodes((*self.cluster.nodes, node))
        self.events[name], self._logs[name] = [], {}
        return name

    def _request(self, node: str, *, follow: bool = False, **options: object) -> Request:
        begin = {EVENTS: self._events_read.get(node, 0)}
        self._pieces.pop(node, None)
        for file, log in self._logs[node].items():
            # An unfinished line is read again, from its beginning.
            begin[file] = log.splitter.offset
            log.splitter = LineSplitter(log.splitter.offset)
        args = run_args(self.run, self.cluster, self.cluster.node(node))
        files: dict[str, object] = {"files": []} if self._events_only else {}
        return _tail({**args, "from": begin, "follow": follow, "packed": True, **files, **options})

    def _happened(self, node: str, head: Mapping[str, Any]) -> Iterator[Event]:
        begin, behind = head.get("offset"), head.get("next")
        if isinstance(begin, int) and begin < self._events_read.get(node, 0):
            return
        if isinstance(behind, int):
            self._events_read[node] = behind
        self._keep_event(node, head["event"])
        if head["event"]["kind"] == "clock":
            self._clocks[node] = NodeReport(node=node, events=(head["event"],)).clock[0]
        yield NodeEvent(node=node, event=head["event"])
        if head["event"]["kind"] == "nested-launcher" and not self._nested:
            self._nested = True
            yield self._warn_of_nested(node, head["event"])
        if head["event"]["kind"] in ("never-met", "never-joined"):
            self._unmet[node] = head["event"]
        self._met = self._met or head["event"]["kind"] == "node-met"
        text, hint = warning_of(head["event"])
        if text:
            yield Notice(node=node, level="warning", text=text, hint=hint)

    def _warn_of_unmet(self) -> Iterator[Notice]:
        """Warn of nodes that met no other, unless one was seen to: that may have been brief."""
        if self._unmet and not self._met:
            text, hint = unmet_warning(
                next(iter(self._unmet.values())), several=len(self._unmet) > 1
            )
            names = fold_hosts(node.name for node in self.cluster.nodes if node.name in self._unmet)
            yield Notice(level="warning", text=f"{names}: {text}", hint=hint)
        self._unmet.clear()

    def _keep_event(self, node: str, event: Mapping[str, Any]) -> None:
        """Keep the parts of an event that show the first cause."""
        if event["kind"] == "clock":
            self._clock_events[node] = event
        elif event["kind"] == "supervisor-up":
            self.events[node].clear()  # it joined or started again: the run continued after these
            for log in self._logs[node].values():
                log.forget_lines()
            again = int(event.get("attempt") or 1) > 1
            self._began[node] = float(event.get("time") or 0.0) if again else 0.0
            said = str(event.get("env_init_said") or "")[:LINE_BYTES]
            self._env_init[node] = float(event.get("env_init_s") or 0.0), said
            self.late.pop(node, None)
        elif event["kind"] in ("room-low", "log-dropped") and event.get("free_bytes") is not None:
            self._room_low[node] = float(event.get("time") or 0.0)
        elif event["kind"] == "late":
            self.late[node] = str(event.get("message"))[:LINE_BYTES]
        elif event["kind"] in ENDS and len(self.events[node]) < EVENTS_LIMIT:
            texts = {key: str(event[key])[:LINE_BYTES] for key in _TEXTS if event.get(key)}
            numbers = {key: event[key] for key in _NUMBERS if key in event}
            ordered = bool(event.get("ordered"))
            self.events[node].append({**texts, **numbers, "ordered": ordered})

    def _note_invalid(self, node: str, error: str, *, is_last: bool) -> Iterator[Event]:
        """Record an invalid message; `node_error` reports the last answer."""
        if not is_last and node not in self._invalid:
            yield Notice(node=node, level="warning", text=f"{NOT_OURS}: {error}")
        self._invalid[node] = error
        self._invalid_counts[node] = self._invalid_counts.get(node, 0) + 1

    def _too_many_pieces(self, node: str, message: Message) -> str:
        """Return an error if a node cuts its logs into ever more pieces; else an empty text."""
        small = len(message.head.get("pieces", ())) - len(message.body) // PIECE_BYTES
        self._pieces[node] = self._pieces.get(node, 0) + max(0, small)
        if self._pieces[node] <= PIECES_LIMIT:
            return ""
        self._invalid_counts[node] = INVALID_LIMIT
        return f"its logs came in more than {PIECES_LIMIT} pieces"

    def _warn_of_nested(self, node: str, event: Mapping[str, Any]) -> Notice:
        """Return a warning that each rank starts a launcher, with what to type instead."""
        from clusterctl.plan.command.nested import once_a_node  # noqa: PLC0415  (few runs have one)

        what = f"rank {event.get('rank')} started {event.get('launcher')} of its own"[:100]
        hint = f"to run the script once per node: {once_a_node(self.cluster.job.command)}"
        return Notice(node=node, level="warning", text=f"{what}, and so may every rank", hint=hint)

    def _data(self, node: str, block: TailBlock) -> Iterator[Event | Piece]:
        file, offset, body = block.file, block.offset, block.body
        log = self._logs[node].get(file)
        if log is None:
            if len(self._logs[node]) >= LOGS_LIMIT:
                error = f"it has more than {LOGS_LIMIT} logs"
                yield from self._note_invalid(node, error, is_last=False)
                return
            source = Source(node=node, rank=block.rank)
            log = self._logs[node][file] = LogFile(source, offset, self._kept)
            log.begins_within = self._cut and offset > 0
        received = log.splitter.received
        if block.dropped > 0:
            text = f"{block.dropped} bytes of {file} were dropped: the disk was full, or it was cut"
            yield Notice(node=node, level="warning", text=text)
        if offset > received:
            text = f"{offset - received} bytes of {file} are missing: it was changed under the run"
            if block.dropped <= 0:
                yield Notice(node=node, level="warning", text=text)
            yield from log.finish()
            log.splitter = LineSplitter(offset)
        elif offset < received:
            body = body[received - offset :]
        yield from log.feed(body, block.time - self._clocks.get(node, 0.0))
        self._unsummed[node] = self._unsummed.get(node, 0) + len(body)
        if log.unfinished > SMALL_BYTES and self._unsummed[node] > SMALL_BYTES:
            self._unsummed[node] = 0
            unfinished = sum(one.unfinished for one in self._logs[node].values())
            if unfinished > UNFINISHED_BYTES:
                yield from log.finish()

    def _finish(self, node: str) -> Iterator[Piece]:
        if self.continues and self.node_runs[node].end is None:
            return
        for log in self._logs[node].values():
            yield from log.finish()


def _tail(args: Mapping[str, object]) -> Request:
    limit = MESSAGE_LIMIT
    return Request(op="tail", args=args, head_limit=limit, body_limit=limit)
