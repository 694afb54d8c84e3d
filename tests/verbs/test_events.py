"""Use-cases are generators: one drives them to their result, or relays them within another."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from clusterctl.verbs.events import Event, Notice, drive, map_events


def use_case() -> Generator[Event, None, str]:
    yield Notice(text="one")
    yield Notice(text="two")
    return "the end"


def twice(event: Event) -> Generator[Event, None, None]:
    yield event
    yield event


def test_driving_shows_every_event_and_returns_the_result() -> None:
    seen: list[Event] = []
    assert drive(use_case(), seen.append) == "the end"
    assert seen == [Notice(text="one"), Notice(text="two")]
    assert drive(use_case()) == "the end"


def test_relaying_yields_what_is_made_of_each_event() -> None:
    seen: list[Event] = []
    assert drive(map_events(use_case(), twice), seen.append) == "the end"
    assert seen == [Notice(text=text) for text in ("one", "one", "two", "two")]


def test_an_error_within_comes_out() -> None:
    def broken() -> Generator[Event, None, None]:
        yield Notice(text="one")
        raise ValueError

    with pytest.raises(ValueError):
        drive(map_events(broken(), twice))


def test_who_is_interrupted_while_relaying_closes_the_use_case_within() -> None:
    ended: list[str] = []

    def within() -> Generator[Event, None, None]:
        try:
            yield Notice(text="one")
            yield Notice(text="two")
        finally:
            ended.append("within")

    def interrupt(_event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        drive(map_events(within(), twice), interrupt)
    # The traceback would keep the generator open as long as somebody looks at it.
    assert caught.tb is not None
    assert ended == ["within"]
