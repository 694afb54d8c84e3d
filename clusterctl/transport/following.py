"""The streams of several nodes, merged as they come; nodes can join again while it is read."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.transport.limits import start_thread
from clusterctl.transport.waiting import Through, Waiting
from clusterctl.wire import Message

Item = tuple[str, Message | Reply]
Start = Callable[[str, Request], Call]
"""Begins a request on a node without waiting for its connection; a failure is in its reply."""

_GATHER = 0.005
"""Seconds to let messages gather before waiting for the next: waking up for each one costs more
than reading it."""


class Following:
    """An iterator over what several nodes send; use as a context manager.

    It yields `(node, message)`, then `(node, reply)` when a node's stream has ended, and None when
    nothing came for `tick` seconds. It ends when every stream has.
    """

    def __init__(
        self,
        start: Start,
        requests: Mapping[str, Request],
        *,
        tick: float,
        patience: float | None = None,
    ) -> None:
        """Start every node's request in a thread of its own.

        Args:
            start: begins one.
            requests: by node.
            tick: seconds of silence after which None is yielded.
            patience: seconds that a node may take for each message; None: as long as it lives.
        """
        self._start = start
        self._tick = tick
        self._patience = patience
        self._items: Waiting[Message | Reply] = Waiting()
        self._running = 0
        self._calls: dict[Call, str] = {}
        """The open calls, each with its node."""
        self._lock = threading.Lock()
        for node, request in requests.items():
            self.add(node, request)

    def add(self, node: str, request: Request, *, after: float = 0.0) -> None:
        """Let a node join, or join again, once `after` seconds have passed."""
        self._running += 1
        # A daemon: a person who presses Ctrl-C does not wait for a dead node.
        start_thread(self._drain, node, request, after, name=f"follow {node}")

    def close(self) -> None:
        """Close every call, each a session on its node; what they started there lives on."""
        with self._lock:
            self._items.closed.set()
            calls = tuple(self._calls)
        for call in calls:
            call.close()

    def drop(self, node: str) -> None:
        """Give up what is read of a node: its stream ends with what has come."""
        with self._lock:
            calls = [call for call, name in self._calls.items() if name == node]
        for call in calls:
            call.close()

    def __enter__(self) -> Self:
        """Return the iterator."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Read no more."""
        self.close()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Item | None:
        """Return the next message or reply, or None at a tick."""
        while self._running:
            item = self._next()
            if item is None:
                return None
            if not isinstance(item, Through):
                return item
            self._running -= 1
            if item.error is not None:
                raise item.error
        raise StopIteration

    def _next(self) -> Item | Through | None:
        """Return the next item; None: nothing came for a tick."""
        try:
            return self._items.get_nowait()
        except queue.Empty:
            time.sleep(min(_GATHER, self._tick))
        try:
            return self._items.get(timeout=self._tick)
        except queue.Empty:
            return None

    def _drain(self, node: str, request: Request, after: float) -> None:
        error: BaseException | None = None
        try:
            if not self._items.closed.wait(after):
                self._read(node, request)
        except BaseException as caught:  # noqa: BLE001  (raised again in the thread that waits)
            error = caught
        self._items.offer(Through(error))

    def _read(self, node: str, request: Request) -> None:
        """Pass on what a node sends, until it ends or nobody reads any more."""
        with contextlib.closing(self._start(node, request)) as call:
            with self._lock:
                if self._items.closed.is_set():
                    return
                self._calls[call] = node
            try:
                self._expect(call)
                for message in call.messages():
                    if not self._items.offer((node, message)):
                        return
                    self._expect(call)
                self._items.offer((node, call.reply()))
            finally:
                with self._lock:
                    del self._calls[call]

    def _expect(self, call: Call) -> None:
        if self._patience is not None:
            call.due(self._patience)
