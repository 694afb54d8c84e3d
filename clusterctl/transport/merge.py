"""Several iterators at once, each in a thread of its own, as one."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeVar

from clusterctl.errors import CouldNotTell
from clusterctl.transport.limits import start_thread

T = TypeVar("T")


def merged(streams: Mapping[str, Iterator[T]], *, at_once: bool = True) -> Iterator[tuple[str, T]]:
    """Run each iterator in a thread of its own; yield what they yield, as it comes.

    Args:
        streams: the iterators, by name.
        at_once: False: none depends on another, so some may wait if there are few threads.

    Raises:
        CouldNotTell: this machine allows too few threads.
    """
    items: queue.SimpleQueue[tuple[str, T | _End]] = queue.SimpleQueue()
    waiting = deque(streams.items())

    def drain() -> None:
        while waiting:
            try:
                name, stream = waiting.popleft()
            except IndexError:
                return  # another thread took the last one
            _drain(name, stream, items)

    for number, name in enumerate(tuple(streams)):
        try:
            # Daemons: a person who presses Ctrl-C does not wait for a dead node.
            start_thread(drain, name=f"node {name}")
        except CouldNotTell:
            if at_once or not number:
                raise
            break  # those that run take the others too
    yield from _until_ended(items, len(streams))


def _drain(name: str, stream: Iterator[T], items: queue.SimpleQueue[tuple[str, T | _End]]) -> None:
    error: BaseException | None = None
    try:
        for item in stream:
            items.put((name, item))
    except BaseException as caught:  # noqa: BLE001  (raised again in the thread that waits)
        error = caught
    items.put((name, _End(error)))


def _until_ended(
    items: queue.SimpleQueue[tuple[str, T | _End]], running: int
) -> Iterator[tuple[str, T]]:
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
