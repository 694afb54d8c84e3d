"""A pool without nodes, for tests of what uses one: every answer is given beforehand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.sync.mirror import Placement
from clusterctl.transport.fanout import MultiStream, Start
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.wire import Message

Answer = Sequence[Message] | Reply
Answers = Mapping[str, Mapping[str, Answer | Callable[[Request], Answer]]]
"""Node → operation → its messages, the last one last; or a failed reply; or what gives them."""


class FakeCall(Call):
    """A call whose answers are known."""

    def __init__(self, node: Node, answer: Answer) -> None:
        """Keep the answer and, in `sent`, what is sent to the operation."""
        self.node = node
        self.sent: list[Message] = []
        self.closed = False
        self._answer = answer

    def messages(self) -> Iterator[Message]:
        """Yield the given messages; the last one gets its `end`."""
        if isinstance(self._answer, Reply):
            yield from self._answer.messages
            return
        *others, last = self._answer
        yield from others
        yield Message({**last.head, "end": True}, last.body)

    def send(self, message: Message) -> None:
        """Keep the message in `sent`."""
        self.sent.append(message)

    def set_deadline(self, seconds: float) -> None:
        """Answers are never late."""

    def reply(self) -> Reply:
        """Return the given failure, or ok."""
        if isinstance(self._answer, Reply):
            return replace(self._answer, messages=())
        return Reply(node=self.node.name)

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


class StreamedCall(Call):
    """A call whose messages come from an iterator as it gives them, its reply last."""

    def __init__(self, node: Node, items: Iterator[Message | Reply]) -> None:
        """Keep the iterator."""
        self.node = node
        self._items = items
        self._reply = Reply.failed(node.name, NodeError("lost", "answer"))

    def messages(self) -> Iterator[Message]:
        """Yield the messages."""
        for item in self._items:
            if isinstance(item, Reply):
                self._reply = item
            else:
                yield item

    def send(self, message: Message) -> None:
        """Send nothing."""

    def set_deadline(self, seconds: float) -> None:
        """Answers are never late."""

    def reply(self) -> Reply:
        """Return the reply that came last."""
        return self._reply

    def close(self) -> None:
        """Nothing is open."""


def streamed(start: Callable[[str, Request], Iterator[Message | Reply]]) -> Start:
    """Return what `MultiStream` calls to begin, from what gives a node's messages and its reply."""

    def begin(name: str, request: Request) -> Call:
        return StreamedCall(Node(host=name, name=name, ssh=Ssh()), start(name, request))

    return begin


class FakePool:
    """Has the methods of `pool.Pool`; `requests` holds what was asked, in order."""

    def __init__(self, cluster: Cluster, answers: Answers) -> None:
        """Keep the answers; a node without any is unreachable.

        Args:
            cluster: whose nodes there are.
            answers: what each node gives for each operation; asking for more is an error.
        """
        self.cluster = cluster
        self.requests: list[tuple[str, Request]] = []
        self.calls: list[FakeCall] = []
        self._answers = answers

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def again(self, cluster: Cluster) -> FakePool:
        """Return the pool of a further command, with the same answers and requests."""
        pool = copy.copy(self)
        pool.cluster = cluster
        return pool

    def begin(self) -> None:
        """Nothing is to be connected."""

    def open(self) -> Iterator[Reply]:
        """Yield ok for each node that has answers."""
        for node in self.cluster.nodes:
            if node.name in self._answers:
                yield Reply(node=node.name)
            else:
                yield _absent(node.name)

    def call(
        self, requests: Mapping[str, Request], *, timeout: float = math.inf
    ) -> Iterator[Reply]:
        """Yield the given reply of each node."""
        del timeout
        for name, request in requests.items():
            if name not in self._answers:
                yield _absent(name)
                continue
            call = self._start(name, request)
            messages = tuple(call.messages())
            yield replace(call.reply(), messages=messages)

    def mirror(self, placements: Mapping[str, Placement]) -> Iterator[Reply]:
        """Yield the reply that each node gives for `sync-apply`."""
        yield from self.call({name: item.request for name, item in placements.items()})

    def start(self, node: str, request: Request) -> FakeCall:
        """Return a call that gives the answers, or the failure of a node that has none."""
        if node not in self._answers:
            return FakeCall(self._node(node), _absent(node))
        return self._start(node, request)

    def follow(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Message | Reply]]:
        """Yield the calls' messages, one call after the other."""
        for name, call in calls.items():
            for message in call.messages():
                yield name, message
            yield name, call.reply()

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        """Merge the given answers as `pool.Pool` does."""

        def start(name: str, request: Request) -> Call:
            if name not in self._answers:
                return StreamedCall(self._node(name), iter([_absent(name)]))
            return self._start(name, request)

        return MultiStream(start, requests, tick=tick, answer_timeout=answer_timeout)

    def close(self) -> None:
        """Nothing is open."""

    def _start(self, name: str, request: Request) -> FakeCall:
        self.requests.append((name, request))
        answer = self._answers[name][request.op]
        call = FakeCall(self._node(name), answer(request) if callable(answer) else answer)
        self.calls.append(call)
        return call

    def _node(self, name: str) -> Node:
        """Return a node; as with a real pool, one that the command left out is known too."""
        known = (*self.cluster.nodes, *self.cluster.left_out)
        return next(node for node in known if node.name == name)


def _absent(name: str) -> Reply:
    return Reply.failed(name, NodeError("unreachable", "connect", "no answer is given"))
