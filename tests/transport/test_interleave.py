"""Several iterators as one, also with fewer threads than iterators."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from typing import cast

import pytest

from clusterctl.errors import CouldNotTell
from clusterctl.transport import fanout
from clusterctl.transport.fanout import WAITING_LIMIT, interleave
from clusterctl.transport.local_limits import start_thread
from clusterctl.wire import Message


def numbers(start: int) -> Iterator[int]:
    yield from range(start, start + 3)


def test_with_few_threads_some_iterators_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 2)
    streams = {str(start): numbers(start) for start in range(10)}
    found = list(interleave(streams, at_once=False))
    for start in range(10):
        mine = [item for name, item in found if name == str(start)]
        assert mine == list(numbers(start))


class Flood:
    """An iterator of large messages, which counts them and knows when it was closed."""

    def __init__(self, count: int, json: int = 0) -> None:
        self.json = json
        self.made = 0
        self.ended = threading.Event()
        self._count = count

    def messages(self) -> Iterator[Message]:
        try:
            for _ in range(self._count):
                self.made += 1
                yield Message({}, b"", size=1 << 20, body_length=(1 << 20) - self.json)
        finally:
            self.ended.set()


@pytest.mark.parametrize(("json", "most"), [(0, WAITING_LIMIT >> 20), (1 << 20, 1)])
def test_fast_iterators_wait_for_a_slow_reader(json: int, most: int) -> None:
    floods = {name: Flood(100, json) for name in "ab"}
    found = interleave({name: flood.messages() for name, flood in floods.items()})
    next(found)
    made = -1
    while made != (made := sum(flood.made for flood in floods.values())):
        time.sleep(0.3)
    assert made <= most + 4
    assert len(list(found)) == 199
    assert all(flood.made == 100 for flood in floods.values())


def test_a_reader_that_stops_ends_iterators_that_wait_for_room() -> None:
    flood = Flood(10**9)
    found = cast("Generator[tuple[str, Message]]", interleave({"a": flood.messages()}))
    next(found)
    (thread,) = (one for one in threading.enumerate() if one.name == "node a")
    found.close()
    thread.join(10)
    assert not thread.is_alive()
    assert flood.ended.is_set()


@pytest.mark.parametrize(("threads", "at_once"), [(0, False), (2, True)])
def test_too_few_threads_are_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, threads: int, *, at_once: bool
) -> None:
    allow(monkeypatch, threads)
    streams = {str(start): numbers(start) for start in range(3)}
    with pytest.raises(CouldNotTell, match="no more threads") as caught:
        list(interleave(streams, at_once=at_once))
    assert "--pids-limit" in str(caught.value.hint)


def allow(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    left = [None] * count

    def start(*args: object, name: str) -> None:
        if not left:
            raise CouldNotTell("no more threads", hint="--pids-limit")
        left.pop()
        start_thread(*args, name=name)  # type: ignore[arg-type]

    monkeypatch.setattr(fanout, "start_thread", start)
