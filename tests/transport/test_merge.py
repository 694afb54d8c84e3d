"""Several iterators as one, also with fewer threads than iterators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterctl.errors import CouldNotTell
from clusterctl.transport import merge
from clusterctl.transport.limits import start_thread
from clusterctl.transport.merge import merged


def numbers(start: int) -> Iterator[int]:
    yield from range(start, start + 3)


def test_with_few_threads_some_iterators_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 2)
    streams = {str(start): numbers(start) for start in range(10)}
    found = list(merged(streams, at_once=False))
    for start in range(10):
        mine = [item for name, item in found if name == str(start)]
        assert mine == list(numbers(start))


@pytest.mark.parametrize(("threads", "at_once"), [(0, False), (2, True)])
def test_too_few_threads_are_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, threads: int, *, at_once: bool
) -> None:
    allow(monkeypatch, threads)
    streams = {str(start): numbers(start) for start in range(3)}
    with pytest.raises(CouldNotTell, match="no more threads") as caught:
        list(merged(streams, at_once=at_once))
    assert "--pids-limit" in str(caught.value.hint)


def allow(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    left = [None] * count

    def start(*args: object, name: str) -> None:
        if not left:
            raise CouldNotTell("no more threads", hint="--pids-limit")
        left.pop()
        start_thread(*args, name=name)  # type: ignore[arg-type]

    monkeypatch.setattr(merge, "start_thread", start)
