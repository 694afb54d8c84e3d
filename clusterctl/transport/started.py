"""A call that is being started: whoever starts many does not wait for each one's channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from clusterctl.inventory.cluster import Node
from clusterctl.transport.failure import Failed, unforeseen
from clusterctl.transport.interface import Call, Reply
from clusterctl.wire import Message


class StartedCall(Call):
    """Opens a call in a thread of its own; what is sent meanwhile waits its turn."""

    def __init__(self, node: Node, start: Callable[[], Call]) -> None:
        """Start opening.

        Args:
            node: where.
            start: opens the call; may raise `Failed`, which becomes the call's reply.
        """
        self.node = node
        self._call: Call | None = None
        self._failure: Failed | None = None
        self._waiting: list[Message] = []
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open, args=(start,), daemon=True)
        self._thread.start()

    def messages(self) -> Iterator[Message]:
        """Yield answers as they come, once the call is open."""
        self._thread.join()
        if self._call is not None:
            yield from self._call.messages()

    def send(self, message: Message) -> None:
        """Send a further message, or keep it until the call is open."""
        with self._lock:
            if self._call is not None:
                self._call.send(message)
            else:
                self._waiting.append(message)

    def reply(self) -> Reply:
        """Say how the call ended."""
        self._thread.join()
        if self._call is not None:
            return self._call.reply()
        assert self._failure is not None, "opening gives a call or a failure"
        return self._failure.reply(self.node.name)

    def close(self) -> None:
        """Give the channel up, now or as soon as it is open."""
        with self._lock:
            self._closed = True
            if self._call is not None:
                self._call.close()

    def _open(self, start: Callable[[], Call]) -> None:
        try:
            call = start()
        except Failed as failure:
            self._failure = failure
            return
        except Exception as error:  # noqa: BLE001  (said in full by `unforeseen`)
            self._failure = unforeseen(self.node.name, error)
            return
        with self._lock:
            for message in self._waiting:
                call.send(message)
            self._call = call
            if self._closed:
                call.close()
