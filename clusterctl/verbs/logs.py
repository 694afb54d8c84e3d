"""The logs of a run as they are now: to show, or to collect as files."""

import json
import re
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

from clusterctl.errors import OPERATION, ClusterError, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.select import named
from clusterctl.logs import ranks
from clusterctl.logs.deduplicate import LastLines, LineDeduplicator, LineSink
from clusterctl.logs.entry import Filter, Piece
from clusterctl.model.tail import LOG_NAME, invalid_tail
from clusterctl.transport.interface import Reply
from clusterctl.values import dataclass
from clusterctl.verbs.dump.explain import explainer
from clusterctl.verbs.events import Emit, Event, NodeEvent, Notice, ignore
from clusterctl.verbs.follow import MergedLines, follow
from clusterctl.verbs.moment import moment
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, bad_output, node_error
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import Message, plain

TICK = 0.5
COLLECT_BYTES = 64 << 30
"""Of one node's logs that are collected at most, with the holes in them."""
COLLECT_FILES = 4096
"""Of one node; it has a log for each rank, and NCCL's."""
SPARE_BYTES = 1 << 30
"""That stay free on the disk: a node could fill it."""
SPARE_CHECK = 64 << 20
"""Bytes of a node between two looks at the disk; less is always collected."""
UNTIL_ALL_HAVE_SENT = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines of a run's logs, and how they are shown."""

    follow: bool = False
    """Keep reading until the run is over."""
    node: str | None = None
    """Only these nodes: names and ranges."""
    rank: str | int | None = None
    """Only these ranks, such as `0-3,7`."""
    tail: int | None = None
    """Only the last so many lines; with `follow` it continues from there."""
    since: str | None = None
    """Only lines since then: `90s`, `2h`, `1d`, `yesterday`, or an ISO time (local if bare)."""
    grep: str | None = None
    """Only lines that match this regular expression."""
    sink: Callable[[], LineSink] = LineDeduplicator
    """Makes what decides how lines are shown."""
    uncut: bool = False
    """As that of `MergedLines`."""

    def filter(self, now: float) -> Filter:
        """Read the conditions on a line; `now` is in seconds since 1970."""
        try:
            wanted = None if self.rank is None else ranks.parse_ranks(str(self.rank))
        except ValueError as error:
            raise UsageError(f"--rank: {error}") from error
        try:
            pattern = None if self.grep is None else re.compile(self.grep)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"--grep: expected a regular expression, found {self.grep!r}: {error}"
            ) from error
        since = None if self.since is None else moment(self.since, now)
        return Filter(ranks=wanted, attempts=not self.uncut, since=since, pattern=pattern)


def show_logs(
    nodes: Nodes, run: str, cluster: Cluster, query: LogQuery, *, errors: dict[str, NodeError]
) -> Generator[Event]:
    """Read what there is, or the last lines of it, then follow if asked to.

    Yields:
        What `read_logs` and `follow` yield, and `HangExplained` of a run that is followed.

    Raises:
        UsageError: an option cannot be read, or the run has no such node or rank.
    """
    wanted = query.filter(time.time())
    log = run_log(run, cluster, query.node)
    if wanted.ranks is not None:
        from clusterctl.verbs.runs.node_answers import node_answers  # noqa: PLC0415  (imports much)

        require_ranks(wanted, node_answers(nodes, run, log.cluster, emit=ignore))
    standing: list[Event] = []
    if query.tail is not None or not query.follow:
        log.continues = query.follow
        sink, lines_per_log = query.sink(), 0
        if query.tail is not None:
            sink, lines_per_log = LastLines(sink, query.tail), lines_to_read(query.tail, wanted)
        uncut = query.uncut and query.tail is None
        lines = MergedLines(wanted, sink, uncut=uncut, patience=UNTIL_ALL_HAVE_SENT)
        yield from read_logs(nodes, log, lines, tail=lines_per_log, errors=errors)
        standing = _standing(log)
        log.resume_reading()
    if query.follow:
        lines = MergedLines(wanted, query.sink(), uncut=query.uncut)
        errors.clear()  # what could not be read is tried again
        followed = follow(nodes, log, lines, errors=errors)
        yield from explainer(nodes, run, cluster).over(_after(standing, followed), log)


def _standing(log: RunLog) -> list[Event]:
    """Return the news that the run is hung, which were among the events that are not shown."""
    hung = {name: one.hung for name, one in log.node_runs.items() if one.hung}
    return [
        NodeEvent(node=name, event={"kind": "hung", **plain(one)}) for name, one in hung.items()
    ]


def _after(first: list[Event], events: Generator[Event]) -> Generator[Event]:
    yield from first
    yield from events


def run_log(run: str, cluster: Cluster, nodes: str | None) -> RunLog:
    """Return the log of a run on these nodes, names and ranges; None: on all of them."""
    chosen = cluster.nodes if nodes is None else tuple(named(cluster, nodes, option="--node"))
    some_nodes = len(chosen) < len(cluster.nodes)
    return RunLog(run, cluster.with_nodes(chosen), judged=False, some_nodes=some_nodes)


def read_logs(
    nodes: Nodes,
    log: RunLog,
    lines: MergedLines | None = None,
    *,
    tail: int = 0,
    errors: dict[str, NodeError],
) -> Generator[Event]:
    """Read what there is and yield it in order of time; with `tail` the last so many lines a log.

    `errors` gets the nodes that could not be read, and why.

    Yields:
        `LogLines`, `Notice`.
    """
    names = [node.name for node in log.cluster.nodes]
    lines = lines or MergedLines(patience=UNTIL_ALL_HAVE_SENT)
    lines.open(names)
    requests = {name: log.read_request(name, lines=tail) for name in names}
    with nodes.following(requests, tick=TICK, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if item is not None:
                node, message = item
                if isinstance(message, Reply):
                    lines.close(node)
                    if error := log.node_error(message):
                        errors[node] = error
                else:
                    for found in log.take_from(stream, node, message, now=time.time()):
                        if isinstance(found, Piece):
                            lines.add(found)
                        elif isinstance(found, Notice):
                            yield found
                        elif isinstance(found, NodeEvent):
                            joined = log.newcomer(found.event)
                            if joined and joined not in requests:
                                requests[joined] = log.read_request(joined, lines=tail)
                                lines.open([joined])
                                stream.add(joined, requests[joined])
            yield from lines.ready()
    yield from lines.rest(finished=log.finished)


def lines_to_read(lines: int, wanted: Filter) -> int:
    """Return how many lines of each log have the last ones wanted; 0: all of it must be read."""
    picks = wanted.pattern is not None or wanted.since is not None
    return 0 if picks else max(1, lines)


def require_ranks(wanted: Filter, view: RunStatus) -> None:
    """Refuse ranks that the run does not have, as far as its nodes say how many it has."""
    count = max((one.world_size for one in view.node_runs.values()), default=0)
    unknown = {rank for rank in wanted.ranks or () if rank >= count}
    if count and unknown:
        raise UsageError(
            f"--rank: expected {ranks.fold_ranks(range(count))}, found {ranks.fold_ranks(unknown)}",
            hint=f"clusterctl status {view.run}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Event):
    """A node's logs are in the folder."""

    node: str
    folder: Path
    size: int


def collect(nodes: Nodes, log: RunLog, folder: Path, *, emit: Emit) -> dict[str, NodeError]:
    """Copy every log and the events of the nodes to `folder/NODE/`, byte for byte.

    Emits:
        `Collected`.

    Raises:
        ClusterError: the folder cannot be written.
    """
    names = [node.name for node in log.cluster.nodes]
    errors: dict[str, NodeError] = {}
    copies = {name: _Copy(folder / name) for name in names}
    requests = {name: log.copy_request(name) for name in names}
    with nodes.following(requests, tick=TICK, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if item is None or item[0] in errors:
                continue
            node, message = item
            event = None if isinstance(message, Reply) else message.head.get("event")
            joined = log.newcomer(event) if isinstance(event, dict) else ""
            if joined and joined not in requests:
                requests[joined] = log.copy_request(joined)
                copies[joined] = _Copy(folder / joined)
                stream.add(joined, requests[joined])
            if isinstance(message, Reply):
                if error := node_error(message):
                    errors[node] = error
                else:
                    emit(Collected(node=node, folder=folder / node, size=copies[node].size))
                continue
            try:
                copies[node].keep(message)
            except _Refused as refused:
                errors[node] = bad_output(node, str(refused))
                stream.drop(node)
            except _Excess as excess:
                hint = f"make room, or read them there: clusterctl logs {log.run} --node {node}"
                errors[node] = NodeError("no-room", OPERATION, str(excess), hint, node=node)
                stream.drop(node)
    return errors


class _Refused(Exception):  # noqa: N818  (what a node sent, not a program error)
    """It is no file of a run, or no byte of one: a node does not choose where we write."""


class _Excess(Exception):  # noqa: N818  (it may be right)
    """It is more than is collected."""


class _Copy:
    """One node's files, as they are copied."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        self._folder = folder
        self._ends: dict[str, int] = {}
        """Of each file the bytes it has by now."""
        self._held = 0
        """Bytes of all of them, with their holes."""
        self._checked = 0
        """Bytes that it had when the disk was last checked."""

    def keep(self, message: Message) -> None:
        """Write one message's bytes at their place.

        Raises:
            ClusterError: they cannot be written.
            _Refused: they are of no file of a run, or do not follow on what it has.
            _Excess: they are too many.
        """
        head = message.head
        if error := invalid_tail(head):
            raise _Refused(error)
        if "event" in head:
            name, hole = str(head.get("file")), 0
            data = json.dumps(head["event"]).encode() + b"\n"
            # Its line may be shorter here than there: events are appended.
            begin = self._ends.get(name, 0)
        elif "data" in head:
            name, data, hole = str(head["data"]), message.body, int(head.get("dropped") or 0)
            begin = int(head["offset"])
        else:
            return
        if not LOG_NAME.fullmatch(name):
            raise _Refused(f"it sent a file that is none of a run's: {name!r}")
        end = self._ends.get(name, 0)
        if begin != end + hole:
            raise _Refused(f"{name} has {end} bytes and {hole} dropped ones, then came {begin}")
        self._require_room(name, hole + len(data))
        self._write(self._folder / name, begin, data, begun=name in self._ends)
        self._ends[name] = begin + len(data)
        self.size += len(data)

    def _require_room(self, name: str, count: int) -> None:
        if name not in self._ends and len(self._ends) >= COLLECT_FILES:
            raise _Excess(f"collected {COLLECT_FILES} logs of it; it has more")
        self._held += count
        if self._held > COLLECT_BYTES:
            raise _Excess(f"collected {self.size} bytes of it; expected {COLLECT_BYTES} at most")
        if self.size - self._checked > SPARE_CHECK:
            self._checked = self.size
            free = shutil.disk_usage(self._folder).free
            if free < SPARE_BYTES:
                words = f"{self._folder} has {free} bytes of room left: expected {SPARE_BYTES}"
                raise _Excess(f"collected {self.size} bytes of it; {words}")

    @staticmethod
    def _write(path: Path, begin: int, data: bytes, *, begun: bool) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What an earlier collect left there is not of this one.
            with path.open("r+b" if begun else "wb") as stream:
                stream.seek(begin)
                stream.write(data)
        except OSError as error:
            raise ClusterError(f"cannot write {path}: {error.strerror}") from error
