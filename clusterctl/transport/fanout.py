"""Many nodes at once: iterators in threads merged as one, and streams that nodes can join again."""

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Self, TypeVar

from clusterctl.errors import CouldNotTell
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.transport.local_limits import start_thread
from clusterctl.wire import Message

T = TypeVar("T")

WAITING_LIMIT = 16 * 1024 * 1024
"""Bytes of messages that may wait to be read; a fast node then waits for a slow screen."""
LEAST_SIZE = 16 * 1024
"""Bytes that a message counts at least: what it takes in memory is more than its frame."""
JSON_SIZE = 30
"""Bytes of memory that a byte of JSON may take."""
CLOSED_POLL_SECONDS = 0.5
"""How often a thread that waits for room checks whether its reader is still there."""


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """A thread has ended."""

    error: BaseException | None
    """Why, if it failed."""


class ByteQueue(queue.Queue[tuple[str, T] | ThreadEnded]):
    """What threads read from nodes, each item with its node's name; limited by its bytes."""

    def __init__(self) -> None:
        super().__init__(WAITING_LIMIT)
        self.closed = threading.Event()
        """The reader has left."""

    def drain(
        self, name: str, stream: Iterator[T], rests: Callable[[], bool] = lambda: False
    ) -> None:
        """Put all items of an iterator there, then how that ended; for a thread of its own.

        `rests` is asked after each item: True leaves the others to a later thread.
        """
        error: BaseException | None = None
        try:
            for item in stream:
                if not self._offer((name, item)):
                    break
                del item  # who waits for the next one does not hold this one
                if rests():
                    return
        except BaseException as caught:  # noqa: BLE001  (raised again in the thread that waits)
            error = caught
        if isinstance(stream, Generator):
            stream.close()
        self._offer(ThreadEnded(error))

    def fail(self, error: BaseException) -> None:
        """Raise this in the thread that waits, also if there is no room."""
        with self.mutex:
            self._put(ThreadEnded(error))
            self.not_empty.notify()

    def _offer(self, item: tuple[str, T] | ThreadEnded) -> bool:
        """Wait for room and put an item there; False: the reader has left."""
        while not self.closed.is_set():
            try:
                self.put(item, timeout=CLOSED_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    # `queue.Queue` calls these three with its lock held.

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._size = 0

    def _qsize(self) -> int:
        return self._size

    def _put(self, item: tuple[str, T] | ThreadEnded) -> None:
        self._size += _size(item)
        super()._put(item)

    def _get(self) -> tuple[str, T] | ThreadEnded:
        item = super()._get()
        self._size -= _size(item)
        return item


def _size(item: tuple[str, object] | ThreadEnded) -> int:
    """Return what an item counts: never nothing, for a queue of nothing is empty."""
    message = None if isinstance(item, ThreadEnded) else item[1]
    if not isinstance(message, Message):
        return LEAST_SIZE
    json = message.size - message.body_length
    return max(LEAST_SIZE, message.body_length + JSON_SIZE * json)


Rest = Callable[[str, Callable[[], object]], bool]
"""Says whether a stream gives nothing until it is asked to; it is then resumed by calling this."""


class _Readers(Generic[T]):
    """The threads that read streams, and the streams that wait for one."""

    def __init__(self, streams: Mapping[str, Iterator[T]], rest: Rest) -> None:
        self.items: ByteQueue[T] = ByteQueue()
        self._waiting = deque(streams.items())
        self._rest = rest

    def run(self) -> None:
        """Read one stream after the other; for a thread of its own."""
        while self._waiting and not self.items.closed.is_set():
            try:
                name, stream = self._waiting.popleft()
            except IndexError:
                return  # another thread took the last one
            resume = partial(self._resume, name, stream)
            self.items.drain(name, stream, partial(self._rest, name, resume))

    def _resume(self, name: str, stream: Iterator[T]) -> None:
        if self.items.closed.is_set():
            return  # the reader has left; while Python exits, a thread would never start
        self._waiting.append((name, stream))
        try:
            start_thread(self.run, name=f"node {name}")
        except CouldNotTell as error:
            self.items.fail(error)


def interleave(
    streams: Mapping[str, Iterator[T]],
    *,
    at_once: bool = True,
    rest: Rest = lambda _name, _resume: False,
) -> Iterator[tuple[str, T]]:
    """Run each iterator in a thread of its own; yield what they yield, as it comes.

    An iterator waits while much of what was yielded is not used, and is closed when this one is.

    Args:
        streams: the iterators, by name.
        at_once: False: none depends on another, so some may wait if there are few threads.
        rest: says of which streams to wait without a thread, which takes 20 KB.

    Raises:
        CouldNotTell: this machine allows too few threads.
    """
    readers = _Readers(streams, rest)
    items = readers.items
    try:
        for number, name in enumerate(tuple(streams)):
            try:
                # Daemons: a user who presses Ctrl-C does not wait for a dead node.
                start_thread(readers.run, name=f"node {name}")
            except CouldNotTell:
                if at_once or not number:
                    raise
                break  # those that run take the others too
        running = len(streams)
        while running:
            item = items.get()
            if not isinstance(item, ThreadEnded):
                yield item
                continue
            running -= 1
            if item.error is not None:
                raise item.error
    finally:
        items.closed.set()


def with_ticks(stream: Iterator[T], seconds: float) -> Iterator[T | None]:
    """Yield what an iterator yields, and None whenever nothing came for so many seconds."""
    items: ByteQueue[T] = ByteQueue()
    start_thread(lambda: items.drain("", stream), name="ticks")
    try:
        while True:
            try:
                item = items.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if not isinstance(item, ThreadEnded):
                yield item[1]
            elif item.error is None:
                return
            else:
                raise item.error
    finally:
        items.closed.set()


Item = tuple[str, Message | Reply]
Start = Callable[[str, Request], Call]
"""Begins a request on a node without waiting for its connection; a failure is in its reply."""

_GATHER_SECONDS = 0.005
"""To let messages gather before waiting for the next: waking up for each costs more than it."""


class MultiStream:
    """An iterator over what several nodes send; use as a context manager.

    It yields `(node, message)`, then `(node, reply)` with the last message when a node's stream has
    ended, and None when nothing came for `tick` seconds. It ends when every stream has.
    """

    def __init__(
        self,
        start: Start,
        requests: Mapping[str, Request],
        *,
        tick: float,
        answer_timeout: float = math.inf,
    ) -> None:
        """Start every node's request in a thread of its own.

        Args:
            tick: seconds of silence after which None is yielded.
            answer_timeout: seconds that a node may take for each answer.
        """
        self._start = start
        self._tick = tick
        self._answer_timeout = answer_timeout
        self._items: ByteQueue[Message | Reply] = ByteQueue()
        self._running = 0
        self._calls: dict[Call, str] = {}
        """The open calls, each with its node."""
        self._lock = threading.Lock()
        for node, request in requests.items():
            self.add(node, request)

    def add(self, node: str, request: Request, *, after: float = 0.0) -> None:
        """Let a node join, or join again, once `after` seconds have passed."""
        self._running += 1
        # A daemon: a user who presses Ctrl-C does not wait for a dead node.
        items = self._read(node, request, after)
        start_thread(self._items.drain, node, items, name=f"follow {node}")

    def close(self) -> None:
        """Close every call, each a session on its node; what they started there lives on."""
        with self._lock:
            self._items.closed.set()
            calls = tuple(self._calls)
        for call in calls:
            call.close()

    def drop(self, node: str) -> None:
        """Read no more of a node: its stream ends with what has come."""
        with self._lock:
            calls = [call for call, name in self._calls.items() if name == node]
        for call in calls:
            call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item | None:
        """Return the next message or reply, or None at a tick."""
        while self._running:
            item = self._next()
            if item is None:
                return None
            if not isinstance(item, ThreadEnded):
                return item
            self._running -= 1
            if item.error is not None:
                raise item.error
        raise StopIteration

    def _next(self) -> Item | ThreadEnded | None:
        """Return the next item; None: nothing came for a tick."""
        try:
            return self._items.get_nowait()
        except queue.Empty:
            time.sleep(min(_GATHER_SECONDS, self._tick))
        try:
            return self._items.get(timeout=self._tick)
        except queue.Empty:
            return None

    def _read(self, node: str, request: Request, after: float) -> Iterator[Message | Reply]:
        """Yield what a node sends, until it ends or the reader leaves."""
        if self._items.closed.wait(after):
            return
        with contextlib.closing(self._start(node, request)) as call:
            with self._lock:
                if self._items.closed.is_set():
                    return
                self._calls[call] = node
            try:
                call.set_deadline(self._answer_timeout)
                last: tuple[Message, ...] = ()
                for message in call.messages():
                    yield message
                    last = (message,)
                    call.set_deadline(self._answer_timeout)
                yield replace(call.reply(), messages=last)
            finally:
                with self._lock:
                    del self._calls[call]
