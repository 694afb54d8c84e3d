"""All nodes at once: connections opened together, one reply per node whatever happens."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from clusterctl.errors import ClusterError, CouldNotTell, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.transport.awake import ASLEEP, Awake
from clusterctl.transport.connection import Connection
from clusterctl.transport.connector import IMPORTING, Connector
from clusterctl.transport.fanout import MultiStream, interleave
from clusterctl.transport.interface import Call, Reply, Request, Timeouts
from clusterctl.transport.local_limits import raise_descriptor_limit, share_arenas, start_thread
from clusterctl.transport.pending_call import PendingCall
from clusterctl.transport.ssh.control_master import ControlFolder
from clusterctl.transport.translate_errors import unexpected_error
from clusterctl.wire import Message

if TYPE_CHECKING:
    import fabric


logger = logging.getLogger(__name__)


class Dialogue(Protocol):
    """Several messages to and fro with one node, such as a sync's; it may wait for other nodes'."""

    def hold(self, connection: Connection, folder: ControlFolder) -> Reply:
        """Have the dialogue over an open connection; `folder` is private, with a short path."""


class Pool:
    """The connections to a cluster's nodes for one command, and the threads that use them.

    Usable as a context manager. A node is connected when it is first needed; every later call
    uses that connection, or a new one if it broke. A node that could not be reached gives its
    failed reply again, until the next command: `again`.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeouts: Timeouts | None = None,
        accept_new: bool = False,
        fanout: int | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            cluster: whose nodes to reach.
            timeouts: the limit of each phase.
            accept_new: record the keys of hosts that are not known yet.
            fanout: the most logins and starts of agents at once; None: as many as answer in time.
        """
        self.cluster = cluster
        self._connector = Connector(
            cluster.name, timeouts=timeouts or Timeouts(), accept_new=accept_new, fanout=fanout
        )
        # Those left out are reached only where a user asks for one by name.
        self._nodes = {node.name: node for node in (*cluster.nodes, *cluster.left_out)}
        self._opening = {name: threading.Lock() for name in self._nodes}
        self._opened: dict[str, Connection] = {}
        self._failed: dict[str, Reply] = {}
        """Of each node that this command could not reach, why."""
        self._unreported: set[str] = set()
        """The nodes whose new connection `open` has not reported yet."""
        self._retired: dict[str, Connection] = {}
        """Of each node the last connection that broke, or did not answer in time."""
        self._closed = threading.Event()
        self._awake = Awake(self._closed)
        raise_descriptor_limit()
        share_arenas(nodes=len(cluster.nodes))
        if not logger.isEnabledFor(logging.DEBUG):
            # Its errors become replies; its own log repeats them with tracebacks.
            logging.getLogger("paramiko").setLevel(logging.CRITICAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def again(self, cluster: Cluster) -> Pool:
        """Return the pool of a further command over the same connections.

        Nodes that could not be reached are tried again. Closing this pool closes that one too.
        """
        self._connector.refresh()
        pool = copy.copy(self)
        pool.cluster = cluster
        pool._failed = {}  # noqa: SLF001  (a pool too)
        return pool

    def begin(self) -> None:
        """Begin to connect to all nodes at once; what is done meanwhile here costs no time."""
        for node in self.cluster.nodes:
            try:
                start_thread(self._open, node.name, name=f"open {node.name}")
            except CouldNotTell:
                return  # whatever needs the others connects them

    def open(self) -> Iterator[Reply]:
        """Connect to all nodes at once; yield each one's reply as it is known.

        Its `seconds` are those of the connection; 0 if it was open already.
        """

        def connected(connection: Connection) -> Reply:
            return Reply(node=connection.node.name, seconds=self._new_login(connection))

        return self._each({node.name: connected for node in self.cluster.nodes})

    def call(
        self, requests: Mapping[str, Request], *, timeout: float = math.inf
    ) -> Iterator[Reply]:
        """Run one operation on each of the nodes; yield each one's reply, with its last answer.

        `timeout`: seconds that a node may take for the whole of it.
        """

        def run(connection: Connection, request: Request) -> Reply:
            with contextlib.closing(connection.call(request, timeout=timeout)) as call:
                # Of what comes before the last one nothing is kept: it may have no end.
                messages = tuple(deque(call.messages(), maxlen=1))
                return replace(call.reply(), messages=messages)

        yield from self._each({name: partial(run, request=r) for name, r in requests.items()})

    def mirror(self, placements: Mapping[str, Dialogue]) -> Iterator[Reply]:
        """Bring a folder of each node to a tree; yield each one's reply as it ends.

        Raises:
            ClusterError: there is no rsync on this machine.
        """
        folder = self._connector.folder
        yield from self._each(
            {name: partial(p.hold, folder=folder) for name, p in placements.items()},
            # Nodes that agree with each other must all be under way, or none.
            at_once=True,
        )

    def start(self, node: str, request: Request) -> Call:
        """Start an operation that is followed while it runs; waits for nothing.

        A node that cannot be reached, also one that was lost just now, is a failed reply.
        """
        used: list[Connection] = []

        def begin() -> Call:
            opened = self._open(node)
            if isinstance(opened, Reply):
                assert opened.error is not None, "a node that is not open has failed"
                raise opened.error
            used.append(opened)
            call = opened.call(request)
            call.login_seconds = self._new_login(opened)
            return call

        def ended(reply: Reply) -> None:
            for connection in used:
                self._ended(node, connection, reply)

        return PendingCall(self._nodes[node], begin, ended=ended)

    def follow(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Message | Reply]]:
        """Merge the messages of calls as they come; a reply ends a node's part."""

        def read(call: Call) -> Iterator[Message | Reply]:
            with contextlib.closing(call):
                yield from call.messages()
                yield call.reply()

        def rest(name: str, resume: Callable[[], object]) -> bool:
            return calls[name].rest(resume)

        try:
            yield from interleave({name: read(call) for name, call in calls.items()}, rest=rest)
        finally:
            for call in calls.values():
                call.close()  # no thread reads one that rests

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        """Run one operation on each of the nodes and merge their messages as they come.

        A node whose connection broke is reconnected when it is added again.

        Args:
            requests: what to do, by node name.
            tick: seconds of silence after which None is yielded.
            answer_timeout: seconds that a node may take for each answer.
        """
        return MultiStream(self._start_anew, requests, tick=tick, answer_timeout=answer_timeout)

    def connection(self, node: str) -> fabric.Connection:
        """Return Fabric's connection to a node, over ours.

        It opens when it is first used, as Fabric's own does. Closing it leaves ours open; after a
        cut it uses the pool's next one. Using it raises `CouldNotTell` if the node cannot be
        reached.

        Raises:
            UsageError: the node is not reached by paramiko.
        """
        with IMPORTING:
            from clusterctl.transport.ssh import fabric_connection  # noqa: PLC0415  (fabric loads slowly)

        found = self._nodes[node]
        if found.local:
            return fabric_connection.LocalFabricConnection(found)
        if found.ssh.via != "paramiko":
            message = f"{node}: has no Fabric connection: it is reached by {found.ssh.via}"
            hint = "Fabric's connections go through `via: paramiko` only"
            raise UsageError(message, hint=hint)
        return fabric_connection.SharedFabricConnection(found, partial(self._connection_now, node))

    def close(self) -> None:
        """Close every connection; what runs detached on the nodes lives on."""
        self._closed.set()
        try:
            for opened in (*self._opened.copy().values(), *self._retired.copy().values()):
                opened.close()
        finally:
            self._connector.close()

    def _each(
        self, work: Mapping[str, Callable[[Connection], Reply]], *, at_once: bool = False
    ) -> Iterator[Reply]:
        """Do something with each node's connection, all at once."""

        def run(name: str, do: Callable[[Connection], Reply]) -> Iterator[Reply]:
            slept = self._awake.now()
            opened = self._open(name)
            if isinstance(opened, Reply):
                yield opened
                return
            try:
                reply = do(opened)
            except NodeError as failure:
                reply = Reply.failed(name, failure)
            except ClusterError:
                raise
            except Exception as error:  # noqa: BLE001  (`unexpected_error` logs it)
                reply = Reply.failed(name, unexpected_error(name, error))
            if reply.error is not None:
                reply = replace(reply, error=self._awake.blame(reply.error, slept))
            self._ended(name, opened, reply)
            yield reply

        runs = {name: run(name, do) for name, do in work.items()}
        for _, reply in interleave(runs, at_once=at_once):
            yield reply

    def _start_anew(self, name: str, request: Request) -> Call:
        """Start an operation on a node, also on one that could not be reached the last time."""
        if self._failed.pop(name, None) is not None:
            self._connector.refresh()
        return self.start(name, request)

    def _ended(self, name: str, connection: Connection, reply: Reply) -> None:
        """Use a connection no further if it broke or fell silent: the next call reconnects."""
        if reply.state not in {"lost", "timeout"}:
            return
        with self._opening[name]:
            if self._opened.get(name) is not connection:
                return
            del self._opened[name]
            # Its other calls may still be answered; the one before it has had its time.
            before, self._retired[name] = self._retired.get(name), connection
        if before is not None:
            before.close()

    def _new_login(self, connection: Connection) -> float:
        """Return how long a node's login took, once."""
        new = connection.node.name in self._unreported
        self._unreported.discard(connection.node.name)
        return connection.login_seconds if new else 0.0

    def _connection_now(self, node: str) -> Connection:
        """Return a connection that works, also to a node that could not be reached before."""
        pool = self.again(self.cluster)
        return pool._connection(node)  # noqa: SLF001  (a pool too)

    def _connection(self, node: str) -> Connection:
        opened = self._open(node)
        if isinstance(opened, Connection):
            return opened
        error = opened.error
        assert error is not None, "a node that is not open has failed"
        message = f"{node}: {error.state} ({error.phase}): {error.message}"
        raise CouldNotTell(message, hint=error.hint or None)

    def _open(self, name: str) -> Connection | Reply:
        """Return the node's connection, made now if it is the first time, or why there is none."""
        with self._opening[name]:
            if self._closed.is_set():
                return _closed(name)
            opened = self._opened.get(name) or self._failed.get(name)
            if isinstance(opened, Connection) and not opened.alive:
                opened.close()
                opened = None
            if opened is not None:
                return opened
            opened = self._connect(self._nodes[name])
            if isinstance(opened, Reply):
                self._opened.pop(name, None)
                self._failed[name] = opened
                return opened
            self._opened[name] = opened
            if self._closed.is_set():
                opened.close()  # its verb was interrupted while it was being made
            return opened

    def _connect(self, node: Node) -> Connection | Reply:
        began, slept = time.monotonic(), self._awake.now()
        try:
            try:
                connection = self._connector.connect(node)
            except NodeError as failure:
                if self._awake.blame(failure, slept).phase != ASLEEP:
                    raise
                connection = self._connector.connect(node)
        except NodeError as failure:
            why = self._awake.blame(failure, slept)
            return Reply.failed(node.name, why, seconds=time.monotonic() - began)
        except Exception as error:  # noqa: BLE001  (`unexpected_error` logs it)
            if self._closed.is_set():
                return Reply.failed(node.name, NodeError("lost", "connect", "given up"))
            return Reply.failed(node.name, unexpected_error(node.name, error))
        self._unreported.add(node.name)
        return connection


def _closed(name: str) -> Reply:
    words = "the connections of this command are closed"
    return Reply.failed(name, NodeError("lost", "connect", words))
