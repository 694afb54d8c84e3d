"""The logs of a run as they are now: to show, or to collect as files."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterError, NodeError, UsageError
from clusterctl.logs import ranks
from clusterctl.logs.deduplicate import LastLines, LineDeduplicator, LineSink
from clusterctl.logs.entry import Piece
from clusterctl.logs.filter import Filter
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.follow import MergedLines, follow
from clusterctl.verbs.response_schema import LOG_NAME, tail_schema_error
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, bad_output, node_error
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import Message

TICK = 0.5
LARGEST_LOG = 1 << 40
"""Bytes; where the filesystem takes no log that is larger, the node has made it up."""
UNTIL_ALL_HAVE_SPOKEN = float("inf")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_logs(
    nodes: Nodes,
    log: RunLog,
    *,
    wanted: Filter | None = None,
    sink: LineSink | None = None,
    uncut: bool = False,
    only: frozenset[str] | None = None,
    tail: int = 0,
) -> Generator[Event, None, dict[str, NodeError]]:
    """Read what there is and yield it in order of time; with `tail` the last so many lines a log.

    `wanted`, `sink` and `uncut` are those of `MergedLines`.

    Yields:
        `LogLines`, `Notice`.

    Returns:
        The nodes that could not be read, and why.
    """
    names = [node.name for node in log.cluster.nodes if only is None or node.name in only]
    lines = MergedLines(wanted, sink, uncut=uncut, patience=UNTIL_ALL_HAVE_SPOKEN)
    lines.open(names)
    troubles: dict[str, NodeError] = {}
    requests = {name: log.read_request(name, lines=tail) for name in names}
    with nodes.following(requests, tick=TICK, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if item is not None:
                node, message = item
                if isinstance(message, Reply):
                    lines.close(node)
                    if wrong := log.trouble(message):
                        troubles[node] = wrong
                else:
                    for found in _taken(log, stream, node, message):
                        if isinstance(found, Piece):
                            lines.add(found)
                        elif isinstance(found, Notice):
                            yield found
            yield from lines.ready()
    yield from lines.rest(finished=log.finished)
    return troubles


def show_logs(
    nodes: Nodes,
    log: RunLog,
    *,
    wanted: Filter,
    follows: bool = False,
    tail: int | None = None,
    only: frozenset[str] | None = None,
    sink: Callable[[], LineSink] = LineDeduplicator,
    uncut: bool = False,
) -> Generator[Event, None, dict[str, NodeError]]:
    """Read what there is, or the last `tail` lines of it, then follow if asked to.

    Args:
        nodes: where.
        log: of the run; nothing of it was read.
        wanted: which lines to show.
        follows: keep reading until the run is over.
        tail: only the last so many lines of what there is; None: all.
        only: names of nodes; all where None.
        sink: makes what decides how lines are shown.
        uncut: as that of `MergedLines`.

    Yields:
        What `read_logs` and `follow` yield.

    Returns:
        The nodes that could not be read to the end, and why.

    Raises:
        UsageError: ranks are wanted that the run does not have.
    """
    if wanted.ranks is not None:
        from clusterctl.verbs.runs.node_answers import node_answers  # noqa: PLC0415  (imports much)

        require_ranks(wanted, (yield from node_answers(nodes, log.run, log.cluster)))
    troubles: dict[str, NodeError] = {}
    if tail is not None or not follows:
        log.goes_on = follows
        shown, last = sink(), 0
        if tail is not None:
            shown, last = LastLines(shown, tail), lines_to_read(tail, wanted)
        whole = uncut and tail is None
        reading = read_logs(
            nodes, log, wanted=wanted, sink=shown, uncut=whole, only=only, tail=last
        )
        troubles = yield from reading
        log.go_on()
    if follows:
        lines = MergedLines(wanted, sink(), uncut=uncut)
        troubles = (yield from follow(nodes, log, lines, only=only)).troubles
    return troubles


def _taken(
    log: RunLog, stream: MultiStream, node: str, message: Message
) -> Iterator[Event | Piece]:
    """Yield what a node's message tells; read no more of a node that sends only nonsense."""
    yield from log.take(node, message, now=time.time())
    if log.is_hopeless(node):
        stream.drop(node)


def lines_to_read(lines: int, wanted: Filter) -> int:
    """Return how many lines of each log have the last ones wanted; 0: all of it must be read."""
    picks = wanted.pattern is not None or wanted.since is not None
    return 0 if picks else max(1, lines)


def parse_filter(
    *, ranks_text: str | None, since: str | None, pattern: str | None, now: float
) -> Filter:
    """Read what a person wrote on the command line.

    Args:
        ranks_text: as `0-3,7`.
        since: as `90s`, `10m`, `2h`, `1d`, or an ISO time (local where it names no zone).
        pattern: a regular expression.
        now: seconds since 1970.

    Raises:
        UsageError: one of them cannot be read.
    """
    try:
        wanted = None if ranks_text is None else ranks.parse_ranks(ranks_text)
    except ValueError as error:
        raise UsageError(f"--rank: {error}") from error
    try:
        found = None if pattern is None else re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"--grep: expected a regular expression, found {pattern!r}: {error}"
        ) from error
    return Filter(ranks=wanted, since=None if since is None else _moment(since, now), pattern=found)


def require_ranks(wanted: Filter, view: RunStatus) -> None:
    """Refuse ranks that the run does not have, as far as its nodes say how many it has.

    Raises:
        UsageError: there are such.
    """
    count = max(((answer.part or {}).get("world_size") or 0 for answer in view.nodes), default=0)
    unknown = {rank for rank in wanted.ranks or () if rank >= count}
    if count and unknown:
        raise UsageError(
            f"--rank: expected {ranks.fold_ranks(range(count))}, found {ranks.fold_ranks(unknown)}",
            hint=f"clusterctl status {view.run} shows the ranks of each node",
        )


def _moment(text: str, now: float) -> float:
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        message = (
            f"--since: expected 10m, 2h or an ISO time such as 2026-11-20T19:00, found {text!r}"
        )
        raise UsageError(message) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Event):
    """A node's logs are in the folder."""

    node: str
    folder: Path
    size: int


def collect(
    nodes: Nodes, log: RunLog, folder: Path, *, only: frozenset[str] | None = None
) -> Generator[Event, None, dict[str, NodeError]]:
    """Copy every log and the events of the nodes to `folder/NODE/`, byte for byte.

    Yields:
        `Collected`.

    Raises:
        ClusterError: the folder cannot be written.
    """
    names = [node.name for node in log.cluster.nodes if only is None or node.name in only]
    troubles: dict[str, NodeError] = {}
    copies = {name: _Copy(folder / name) for name in names}
    requests = {name: log.copy_request(name) for name in names}
    with nodes.following(requests, tick=TICK, answer_timeout=ANSWER_SECONDS) as stream:
        for item in stream:
            if item is None or item[0] in troubles:
                continue
            node, message = item
            if isinstance(message, Reply):
                if wrong := node_error(message):
                    troubles[node] = wrong
                else:
                    yield Collected(node=node, folder=folder / node, size=copies[node].size)
                continue
            try:
                copies[node].keep(message)
            except _Stranger as stranger:
                troubles[node] = bad_output(node, str(stranger))
                stream.drop(node)
    return troubles


class _Stranger(Exception):  # noqa: N818  (what a node sent, not a fault of ours)
    """It is none of a run's files: a node does not choose where we write."""


class _Copy:
    """One node's files, as they are copied."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        self._folder = folder
        self._begun: set[str] = set()

    def keep(self, message: Message) -> None:
        """Write one message's bytes at their place.

        Raises:
            ClusterError: they cannot be written.
            _Stranger: they are of no file of a run.
        """
        head = message.head
        strange = tail_schema_error(head)
        if strange:
            raise _Stranger(strange)
        if "event" in head:
            # Its line may be shorter here than there: events are appended.
            name, place = str(head.get("file")), (0, os.SEEK_END)
            data = json.dumps(head["event"]).encode() + b"\n"
        elif "data" in head:
            name, place = str(head["data"]), (int(head["offset"]), os.SEEK_SET)
            data = message.body
        else:
            return
        if not LOG_NAME.fullmatch(name):
            raise _Stranger(f"it sent a file that is none of a run's: {name!r}")
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What an earlier collect left there is not of this one.
            with path.open("r+b" if name in self._begun else "wb") as stream:
                stream.seek(*place)
                stream.write(data)
        except OSError as error:
            if error.errno == errno.EFBIG and place[0] > LARGEST_LOG:
                raise _Stranger(f"a log of {place[0]} bytes") from error
            raise ClusterError(f"cannot write {path}: {error.strerror}") from error
        self._begun.add(name)
        self.size += len(data)
