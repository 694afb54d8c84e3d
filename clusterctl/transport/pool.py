"""All nodes at once: connections opened together, one reply per node whatever happens."""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from clusterctl.errors import ClusterError, CouldNotTell, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.transport.failure import Failed, unforeseen
from clusterctl.transport.following import Following
from clusterctl.transport.interface import Call, Connection, Reply, Request, Timeouts
from clusterctl.transport.merge import merged
from clusterctl.transport.mirror import Placement, mirror
from clusterctl.transport.started import StartedCall
from clusterctl.transport.ways import Ways
from clusterctl.wire import Message

if TYPE_CHECKING:
    import fabric

DESCRIPTORS = 8192
"""Open files that many connections need; the soft limit is often 1024."""

logger = logging.getLogger(__name__)


class Pool:
    """The ways to a cluster's nodes for one command, and the threads that use them.

    Usable as a context manager. A node is connected when it is first needed; every later call
    uses that connection, and a node that failed gives its failed reply again.
    """

    def __init__(
        self, cluster: Cluster, *, timeouts: Timeouts | None = None, accept_new: bool = False
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            cluster: whose nodes to reach.
            timeouts: the limit of each phase.
            accept_new: record the keys of hosts that are not known yet.
        """
        self.cluster = cluster
        self._ways = Ways(cluster.name, timeouts=timeouts or Timeouts(), accept_new=accept_new)
        # Those left out are reached only where somebody asks for one by name.
        self._nodes = {node.name: node for node in (*cluster.nodes, *cluster.left_out)}
        self._opening = {name: threading.Lock() for name in self._nodes}
        self._opened: dict[str, Connection | Reply] = {}
        self._seconds: dict[str, float] = {}
        self._closed = False
        _raise_descriptor_limit()
        if not logger.isEnabledFor(logging.DEBUG):
            # Its errors become replies; its own log repeats them with tracebacks.
            logging.getLogger("paramiko").setLevel(logging.CRITICAL)

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        self.close()

    def begin(self) -> None:
        """Begin to connect to all nodes at once; what is done meanwhile here costs no time."""
        for node in self.cluster.nodes:
            threading.Thread(target=self._open, args=(node.name,), daemon=True).start()

    def open(self) -> Iterator[Reply]:
        """Connect to all nodes at once; yield each one's reply as it is known."""

        def connect(name: str) -> Iterator[Reply]:
            opened = self._open(name)
            if isinstance(opened, Reply):
                yield opened
            else:
                yield Reply(node=name, state="ok", phase="auth", seconds=self._seconds[name])

        for _, reply in merged({node.name: connect(node.name) for node in self.cluster.nodes}):
            yield reply

    def call(
        self, requests: Mapping[str, Request], *, timeout: float | None = None
    ) -> Iterator[Reply]:
        """Run one operation on each of the nodes; yield each one's reply as it ends.

        Args:
            requests: what to do, by node name.
            timeout: seconds that a node may take for the whole of it; None: as long as it lives.
        """

        def run(connection: Connection, request: Request) -> Reply:
            with contextlib.closing(connection.call(request, timeout=timeout)) as call:
                messages = tuple(call.messages())
                return replace(call.reply(), messages=messages)

        yield from self._each({name: partial(run, request=r) for name, r in requests.items()})

    def mirror(self, placements: Mapping[str, Placement]) -> Iterator[Reply]:
        """Bring a folder of each node to a tree; yield each one's reply as it ends.

        Raises:
            ClusterError: there is no rsync on this machine.
        """
        folder = self._ways.folder
        yield from self._each(
            {name: partial(mirror, placement=p, folder=folder) for name, p in placements.items()}
        )

    def start(self, node: str, request: Request) -> Call:
        """Start an operation that is followed while it runs; does not wait for its channel.

        Raises:
            CouldNotTell: the node cannot be reached.
        """
        connection = self._connection(node)
        return StartedCall(connection.node, lambda: connection.call(request))

    def follow(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Message | Reply]]:
        """Merge the messages of calls as they come; a reply ends a node's part."""

        def read(call: Call) -> Iterator[Message | Reply]:
            with contextlib.closing(call):
                yield from call.messages()
                yield call.reply()

        yield from merged({name: read(call) for name, call in calls.items()})

    def following(self, requests: Mapping[str, Request], *, tick: float) -> Following:
        """Run one operation on each of the nodes and merge their messages as they come.

        A node whose connection broke is connected anew when it is added again.

        Args:
            requests: what to do, by node name.
            tick: seconds of silence after which None is yielded.
        """
        return Following(self._run_anew, requests, tick=tick)

    def connection(self, node: str) -> fabric.Connection:
        """Return Fabric's connection to a node, over the one that is open.

        Raises:
            CouldNotTell: the node cannot be reached.
            UsageError: the node is not reached through paramiko.
        """
        from clusterctl.transport.fabric_way import over  # noqa: PLC0415  (fabric loads slowly)

        connection = self._connection(node)
        try:
            return over(connection)
        except TypeError as error:
            message = f"{node}: has no Fabric connection: {error}"
            hint = "Fabric's connections go through `via: paramiko` only"
            raise UsageError(message, hint=hint) from error

    def close(self) -> None:
        """Close every connection; what runs detached on the nodes lives on."""
        self._closed = True
        for opened in list(self._opened.values()):
            if isinstance(opened, Connection):
                opened.close()
        self._ways.close()

    def _each(self, work: Mapping[str, Callable[[Connection], Reply]]) -> Iterator[Reply]:
        """Do something with each node's connection, all at once."""

        def run(name: str, do: Callable[[Connection], Reply]) -> Iterator[Reply]:
            opened = self._open(name)
            if isinstance(opened, Reply):
                yield opened
                return
            began = time.monotonic()
            try:
                yield do(opened)
            except Failed as failure:
                yield failure.reply(name, seconds=time.monotonic() - began)
            except ClusterError:
                raise
            except Exception as error:  # noqa: BLE001  (said in full by `unforeseen`)
                yield unforeseen(name, error).reply(name)

        for _, reply in merged({name: run(name, do) for name, do in work.items()}):
            yield reply

    def _run_anew(self, name: str, request: Request) -> Generator[Message | Reply, None, None]:
        """Run an operation; what broke on the way is not kept for the next time."""
        opened = self._open(name)
        if isinstance(opened, Reply):
            self._forget(name)
            yield opened
            return
        try:
            call = opened.call(request)
        except Failed as failure:
            self._forget(name)
            yield failure.reply(name)
            return
        with contextlib.closing(call):
            yield from call.messages()
            reply = call.reply()
        if not reply.ok:
            self._forget(name)
        yield reply

    def _forget(self, name: str) -> None:
        """Let the next one who needs this node connect to it."""
        with self._opening[name]:
            opened = self._opened.pop(name, None)
        if isinstance(opened, Connection):
            opened.close()

    def _connection(self, node: str) -> Connection:
        opened = self._open(node)
        if isinstance(opened, Reply):
            raise _could_not_tell(opened)
        return opened

    def _open(self, name: str) -> Connection | Reply:
        """Return the node's connection, made now if it is the first time, or why there is none."""
        with self._opening[name]:
            opened = self._opened.get(name)
            if opened is None:
                began = time.monotonic()
                opened = self._connect(self._nodes[name])
                self._seconds[name] = time.monotonic() - began
                self._opened[name] = opened
                if self._closed and isinstance(opened, Connection):
                    opened.close()  # its verb was interrupted while it was being made
            return opened

    def _connect(self, node: Node) -> Connection | Reply:
        began = time.monotonic()
        try:
            return self._ways.connect(node)
        except Failed as failure:
            return failure.reply(node.name, seconds=time.monotonic() - began)
        except Exception as error:  # noqa: BLE001  (said in full by `unforeseen`)
            if self._closed:
                return Reply(node=node.name, state="lost", phase="connect", words="given up")
            return unforeseen(node.name, error).reply(node.name)


def _could_not_tell(reply: Reply) -> CouldNotTell:
    message = f"{reply.node}: {reply.state} ({reply.phase}): {reply.words}"
    return CouldNotTell(message, hint=reply.hint or None)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
