"""When something was, as people write it."""

from __future__ import annotations

import datetime as dt

import pytest

from clusterctl.errors import UsageError
from clusterctl.verbs.moment import moment

NOW = dt.datetime(2026, 11, 28, 14, 5).astimezone()


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("90s", NOW - dt.timedelta(seconds=90)),
        ("1.5h", NOW - dt.timedelta(minutes=90)),
        ("2d", NOW - dt.timedelta(days=2)),
        ("1w", NOW - dt.timedelta(days=7)),
        ("today", dt.datetime(2026, 11, 28).astimezone()),
        ("yesterday", dt.datetime(2026, 11, 27).astimezone()),
        ("2026-11-27T20:00", dt.datetime(2026, 11, 27, 20).astimezone()),
        ("2026-11-27T20:00Z", dt.datetime(2026, 11, 27, 20, tzinfo=dt.UTC)),
    ],
)
def test_a_moment_is_read(text: str, then: dt.datetime) -> None:
    assert moment(text, NOW.timestamp()) == then.timestamp()


@pytest.mark.parametrize("text", ["", "10", "tomorrow", "1x", "-1h", "99-99-99"])
def test_something_else_is_refused_with_all_that_is_read(text: str) -> None:
    with pytest.raises(UsageError, match="90s, 10m, 2h, 1d, 1w, today, yesterday or an ISO time"):
        moment(text, NOW.timestamp())
