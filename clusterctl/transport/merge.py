"""Several iterators at once, each in a thread of its own, as one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def merged(streams: Mapping[str, Iterator[T]]) -> Iterator[tuple[str, T]]:
    """Run each iterator in a thread of its own; yield what they yield, as it comes."""
    items: queue.SimpleQueue[tuple[str, T | _End]] = queue.SimpleQueue()

    def drain(name: str, stream: Iterator[T]) -> None:
        error: BaseException | None = None
        try:
            for item in stream:
                items.put((name, item))
        except BaseException as caught:  # noqa: BLE001  (raised again in the thread that waits)
            error = caught
        items.put((name, _End(error)))

    for name, stream in streams.items():
        # Daemons: a person who presses Ctrl-C does not wait for a dead node.
        threading.Thread(
            target=drain, args=(name, stream), name=f"node {name}", daemon=True
        ).start()
    running = len(streams)
    while running:
        name, item = items.get()
        if isinstance(item, _End):
            running -= 1
            if item.error is not None:
                raise item.error
        else:
            yield name, item


class _End:
    """A thread of `merged` is through."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
