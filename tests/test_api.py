"""The Python API: what `__all__` names is there, and the command starts without all of it."""

from __future__ import annotations

from collections.abc import Generator

import clusterctl
from clusterctl.verbs.events import Event, Said, drive


def test_every_public_name_is_there() -> None:
    for name in clusterctl.__all__:
        assert getattr(clusterctl, name) is not None
    assert list(clusterctl.__all__[1:]) == sorted(clusterctl.__all__[1:])


def test_a_name_that_is_not_public_is_not_there() -> None:
    assert not hasattr(clusterctl, "subprocess")


def test_driving_gives_the_result_and_tells_every_event() -> None:
    def use_case() -> Generator[Event, None, int]:
        yield Said(text="one")
        yield Said(text="two")
        return 3

    heard: list[Event] = []
    assert drive(use_case(), heard.append) == 3
    assert [event.text for event in heard if isinstance(event, Said)] == ["one", "two"]
