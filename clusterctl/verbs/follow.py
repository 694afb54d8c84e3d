"""Follow a run: its lines live and merged, what happens to it, through lost connections.

The run does not need us: it keeps running when we stop or our connection breaks.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import field

from clusterctl.errors import FOLLOW, NodeError
from clusterctl.logs.deduplicate import LineDeduplicator, LineSink
from clusterctl.logs.entry import Filter, Folded, Piece
from clusterctl.logs.merge import Merger
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply
from clusterctl.values import dataclass
from clusterctl.verbs.events import Event, NodeEvent, Notice
from clusterctl.verbs.rpc import Nodes
from clusterctl.verbs.runs.run_log import RunLog

TICK = 0.02
REORDER_SECONDS = 0.06
"""Seconds that a line waits for earlier ones of other nodes."""
BATCH_BYTES = 1024 * 1024
"""Of lines that are shown at once: cut into lines they take ten times as much memory."""
BACKOFF = (1.0, 2.0, 5.0, 10.0)
"""Seconds between attempts to reach a lost node again."""
LAST_WAIT = 10.0
"""Seconds that a lost node may take once all others have ended."""
LOCKED_RETRY = 30.0
"""Seconds between attempts to log in again: each one counts for a server that bans addresses."""
LOCKED_WAIT = 1800.0
"""Seconds that a user may take to unlock the SSH agent."""
LONGEST_WAIT = 300.0
"""Seconds without an answer of any node until following is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines(Event):
    """Lines to show, in order."""

    lines: tuple[Folded, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """A moment without news, for who keeps time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """The connection to a node broke, or cannot be made; it is tried again."""

    kind = "node-lost"

    node: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBack(Event):
    """A lost node answers again; its log resumes where it broke."""

    kind = "node-back"

    node: str


@dataclass(slots=True, kw_only=True)
class _Lost:
    """Nodes that do not answer at the moment."""

    tries: dict[str, int] = field(default_factory=dict)
    alone_since: float | None = None
    """When there was no other node left to hear of."""
    locked: set[str] = field(default_factory=set)
    """Those that let us in before and do not now: the agent's keys are locked or have expired."""


def follow(
    nodes: Nodes,
    log: RunLog,
    lines: MergedLines | None = None,
    *,
    errors: dict[str, NodeError],
) -> Generator[Event]:
    """Follow until every node's part of the run has ended.

    Args:
        log: what was read already; reading resumes there.
        lines: what is shown of the lines, and those that wait to be shown already.
        errors: gets the nodes whose part could not be read to its end, and why.

    Yields:
        `LogLines`, `NodeEvent`, `NodeLost`, `NodeBack`, `Notice`, `Tick`.
    """
    names = [node.name for node in log.cluster.nodes]
    lines = lines or MergedLines()
    lines.open(names)
    lost = _Lost()
    waiting = {name for name in names if name not in log.node_runs}
    requests = {name: log.follow_request(name) for name in names}
    with nodes.following(requests, tick=TICK) as stream:
        for item in stream:
            if item is None:
                yield Tick()
            else:
                node, message = item
                if isinstance(message, Reply):
                    yield from _ended(node, message, log, stream, lost, errors)
                    if node in log.node_runs or node in errors:
                        lines.close(node)
                        waiting.discard(node)
                else:
                    if lost.tries.pop(node, None) is not None:
                        lost.locked.discard(node)
                        yield NodeBack(node=node)
                    for found in log.take_from(stream, node, message, now=time.time()):
                        if isinstance(found, Piece):
                            lines.add(found)
                        else:
                            yield found
                            errors.pop(_add_newcomer(found, log, stream, lines, waiting), None)
            yield from lines.ready()
            if _given_up(waiting, lost, log):
                break
    for name in lost.tries:
        silence = "stopped answering; its part of the run may still be running"
        errors.setdefault(name, NodeError("lost", FOLLOW, silence, node=name))
    yield from lines.rest(finished=log.finished)


def _add_newcomer(
    found: Event, log: RunLog, stream: MultiStream, lines: MergedLines, waiting: set[str]
) -> str:
    """Follow the node that has joined the run by this event; return its name.

    Empty: none has, or it is followed already.
    """
    joined = log.newcomer(found.event) if isinstance(found, NodeEvent) else ""
    if not joined or joined in waiting:
        return ""
    waiting.add(joined)
    log.node_runs.pop(joined, None)
    lines.open([joined])
    stream.add(joined, log.follow_request(joined))
    return joined


class MergedLines:
    """From pieces to lines on the screen; outlives an interrupted `follow`, so nothing is lost."""

    def __init__(
        self,
        wanted: Filter | None = None,
        sink: LineSink | None = None,
        *,
        uncut: bool = False,
        patience: float | None = None,
    ) -> None:
        """Prepare.

        Args:
            wanted: which lines to show; None: all.
            sink: how; None: equal lines of several ranks as one.
            uncut: what came together is shown together, if it is all wanted: only `Raw` prints it
                as it was.
            patience: seconds that a line waits for earlier ones of other nodes; None: the usual.
        """
        self._merger = Merger((), patience=REORDER_SECONDS if patience is None else patience)
        self._sink = sink or LineDeduplicator()
        self._wanted = wanted or Filter()
        self._uncut = uncut and self._wanted.pattern is None

    def open(self, nodes: list[str]) -> None:
        """Expect lines of these nodes."""
        for node in nodes:
            self._merger.open(node)

    def add(self, piece: Piece) -> None:
        """Take the next lines of a node."""
        if self._wanted.passes(piece):
            self._merger.add(piece, now=time.monotonic())

    def close(self, node: str) -> None:
        """Expect no more of this node."""
        self._merger.close(node)

    def ready(self) -> Iterator[LogLines]:
        """Yield what is to be shown now."""
        now = time.monotonic()
        return self._shown(self._merger.ready(now=now), now)

    def rest(self, *, finished: bool) -> Iterator[LogLines]:
        """Yield what waited; `finished`: the run has ended well, on every node."""
        yield from self._shown(self._merger.flush(), time.monotonic())
        yield from _batch(self._sink.flush(finished=finished))

    def _shown(self, pieces: Iterator[Piece], now: float) -> Iterator[LogLines]:
        """Yield what is to be shown now that these came."""
        size = 0
        for piece in pieces:
            entries = piece.uncut() if self._uncut else self._wanted.matching(piece.entries())
            for entry in entries:
                self._sink.add(entry, now=now)
            size += len(piece.chunk.data)
            if size > BATCH_BYTES:
                yield from _batch(self._sink.ready(now=now))
                size = 0
        yield from _batch(self._sink.ready(now=now))


def _batch(lines: list[Folded]) -> list[LogLines]:
    """Return lines as one event; none where there are none."""
    return [LogLines(lines=tuple(lines))] if lines else []


def _ended(
    node: str,
    reply: Reply,
    log: RunLog,
    stream: MultiStream,
    lost: _Lost,
    errors: dict[str, NodeError],
) -> list[Event]:
    """A node's stream is over: its part has ended, or the way to it broke; return what to show."""
    error = log.node_error(reply)
    locked = error is not None and error.state == "auth" and node in lost.tries
    is_first_locked = locked and not lost.locked
    (lost.locked.add if locked else lost.locked.discard)(node)
    if error is None:
        lost.tries.pop(node, None)
        return []
    # No trouble of the network makes bad answers.
    hopeless = error.state == "hostkey" or (error.state, error.phase) == ("bad-output", "answer")
    if error.answered or hopeless or (error.state == "auth" and not locked):
        errors[node] = error
        lost.tries.pop(node, None)
        return [Notice(node=node, level="warning", text=str(error))]
    tries = lost.tries.get(node, 0)
    lost.tries[node] = tries + 1
    after = LOCKED_RETRY if locked else BACKOFF[min(tries, len(BACKOFF) - 1)]
    stream.add(node, log.follow_request(node), after=after)
    if is_first_locked:
        text = f"{error}; it is tried again; unlock your SSH agent, or add its key: ssh-add"
        return [Notice(node=node, level="warning", text=text)]
    if tries == 0:
        why = error.message if error.state == "lost" else str(error)
        return [NodeLost(node=node, message=why)]
    return []


def _given_up(waiting: set[str], lost: _Lost, log: RunLog) -> bool:
    """Tell whether only lost nodes are left, and had their time; called for every message.

    `waiting` are the nodes whose part has not ended. Those left out, and spares, get no time.
    """
    # Asked for only once nodes have ended: this is done for every message.
    if waiting and log.node_runs and waiting <= log.left_out | (log.aside & lost.tries.keys()):
        return True
    if not waiting or not lost.tries.keys() >= waiting:
        lost.alone_since = None
        return False
    if lost.alone_since is None:
        lost.alone_since = time.monotonic()
    alone = len(waiting) == len(log.events)
    limit = LOCKED_WAIT if lost.locked else LONGEST_WAIT if alone else LAST_WAIT
    return time.monotonic() - lost.alone_since > limit
