"""What threads have read from nodes and nobody has used yet: a queue with a limit of bytes."""

from __future__ import annotations

import queue
import threading
from typing import TypeVar

from clusterctl.wire import Message

T = TypeVar("T")

WAITING_LIMIT = 16 * 1024 * 1024
"""Bytes of messages that may wait to be read; a fast node then waits for a slow screen."""
LEAST_SIZE = 16 * 1024
"""Bytes that a message counts at least: what it takes in memory is more than its frame."""
_LOOK_AROUND = 0.5


class ThreadEnded:
    """A thread has ended."""

    def __init__(self, error: BaseException | None) -> None:
        """Keep why, if it failed."""
        self.error = error


class ByteQueue(queue.Queue[tuple[str, T] | ThreadEnded]):
    """What waits to be read, each with its node's name, limited by its bytes."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__(WAITING_LIMIT)
        self.closed = threading.Event()
        """Nobody reads any more."""

    def offer(self, item: tuple[str, T] | ThreadEnded) -> bool:
        """Wait for room and put an item there; False: nobody reads any more."""
        while not self.closed.is_set():
            try:
                self.put(item, timeout=_LOOK_AROUND)
            except queue.Full:
                continue
            return True
        return False

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
    return max(LEAST_SIZE, message.size) if isinstance(message, Message) else LEAST_SIZE
