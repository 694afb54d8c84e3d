"""A call that is being started: whoever starts many does not wait for each one's channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from clusterctl.inventory.cluster import Node
from clusterctl.transport.failure import Failed, unforeseen
from clusterctl.transport.interface import Call, Reply
from clusterctl.transport.limits import start_thread
from clusterctl.wire import Message


class StartedCall(Call):
    """Opens a call in a thread of its own; what is sent meanwhile waits its turn."""

    def __init__(
        self,
        node: Node,
        start: Callable[[], Call],
        *,
        ended: Callable[[Reply], object] | None = None,
    ) -> None:
        """Start opening.

        Args:
            node: where.
            start: opens the call; may raise `Failed`, which becomes the call's reply.
            ended: hears the call's reply.
        """
        self._ended = ended
        self.node = node
        self._call: Call | None = None
        self._ready = False
        """What waited was sent, so that messages go straight to the call."""
        self._failure: Failed | None = None
        self._waiting: list[Message] = []
        self._due: float | None = None
        """What was said of the next answer before the call was open."""
        self._closed = False
        self._lock = threading.Lock()
        """Held for a moment only, never while anything is sent."""
        self._opened = threading.Event()
        start_thread(self._open, start, name=f"start {node.name}")

    def messages(self) -> Iterator[Message]:
        """Yield answers as they come, once the call is open."""
        self._opened.wait()
        if self._call is not None:
            yield from self._call.messages()

    def send(self, message: Message) -> None:
        """Send a further message, or keep it until the call is open."""
        with self._lock:
            if not self._ready:
                self._waiting.append(message)
                return
        if self._call is not None:
            self._call.send(message)

    def due(self, seconds: float) -> None:
        """Expect the next answer within so many seconds, from when the call is open."""
        with self._lock:
            self._due = seconds
            call = self._call
        if call is not None:
            call.due(seconds)

    def reply(self) -> Reply:
        """Say how the call ended."""
        self._opened.wait()
        if self._call is not None:
            reply = self._call.reply()
        else:
            assert self._failure is not None, "opening gives a call or a failure"
            reply = self._failure.reply(self.node.name)
        if self._ended is not None:
            self._ended(reply)
        return reply

    def close(self) -> None:
        """Give the channel up, now or as soon as it is open; does not wait for it."""
        with self._lock:
            self._closed = True
        if self._call is not None:
            self._call.close()

    def _open(self, start: Callable[[], Call]) -> None:
        try:
            call = start()
            with self._lock:
                self._call = call
                seconds = self._due
            if seconds is not None:
                call.due(seconds)
        except Failed as failure:
            self._failure = failure
        except Exception as error:  # noqa: BLE001  (its words are in `unforeseen`)
            self._failure = unforeseen(self.node.name, error)
        self._opened.set()
        if self._call is not None:
            self._send_waiting(self._call)

    def _send_waiting(self, call: Call) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                closed = self._closed
                self._ready = closed or not waiting
            if closed:
                call.close()
            if self._ready:
                return
            for message in waiting:
                call.send(message)
