"""What Ctrl-C asks of a person who follows a run, on a real terminal."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from clusterctl.cli import following


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Be on a terminal; what is written to the descriptor is typed."""
    typed, slave = pty.openpty()
    with open(slave, closefd=False) as stdin, open(slave, "w", closefd=False) as stderr:
        # Not those of `sys`, which pytest replaces between this and the test.
        monkeypatch.setattr(following, "sys", SimpleNamespace(stdin=stdin, stderr=stderr))
        yield typed
    os.close(typed)
    os.close(slave)


@pytest.mark.parametrize(
    ("answer", "wish"), [("\n", "leave"), ("l\n", "leave"), ("s\n", "stop"), ("f\n", "stay")]
)
def test_an_answer_is_taken(terminal: int, answer: str, wish: str) -> None:
    os.write(terminal, answer.encode())
    assert following._ask() == wish


@pytest.mark.usefixtures("terminal")
def test_without_an_answer_following_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ANSWER_SECONDS", 0.05)
    assert following._ask() == "stay"
