"""Several iterators at once, each in a thread of its own, as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from typing import TypeVar

from clusterctl.errors import CouldNotTell
from clusterctl.transport.limits import start_thread
from clusterctl.transport.waiting import Through, Waiting

T = TypeVar("T")


def merged(streams: Mapping[str, Iterator[T]], *, at_once: bool = True) -> Iterator[tuple[str, T]]:
    """Run each iterator in a thread of its own; yield what they yield, as it comes.

    An iterator waits while much of what was yielded is not used, and is closed when this one is.

    Args:
        streams: the iterators, by name.
        at_once: False: none depends on another, so some may wait if there are few threads.

    Raises:
        CouldNotTell: this machine allows too few threads.
    """
    items: Waiting[T] = Waiting()
    waiting = deque(streams.items())

    def drain() -> None:
        while waiting and not items.closed.is_set():
            try:
                name, stream = waiting.popleft()
            except IndexError:
                return  # another thread took the last one
            _drain(name, stream, items)

    try:
        for number, name in enumerate(tuple(streams)):
            try:
                # Daemons: a person who presses Ctrl-C does not wait for a dead node.
                start_thread(drain, name=f"node {name}")
            except CouldNotTell:
                if at_once or not number:
                    raise
                break  # those that run take the others too
        yield from _until_ended(items, len(streams))
    finally:
        items.closed.set()


def _drain(name: str, stream: Iterator[T], items: Waiting[T]) -> None:
    error: BaseException | None = None
    try:
        for item in stream:
            if not items.offer((name, item)):
                break
    except BaseException as caught:  # noqa: BLE001  (raised again in the thread that waits)
        error = caught
    finally:
        if isinstance(stream, Generator):
            stream.close()
    items.offer(Through(error))


def _until_ended(items: Waiting[T], running: int) -> Iterator[tuple[str, T]]:
    while running:
        item = items.get()
        if isinstance(item, Through):
            running -= 1
            if item.error is not None:
                raise item.error
        else:
            yield item
