"""Nodes of one sync: the first is locked before the others, which then plan beside it."""

from __future__ import annotations

import threading

from clusterctl.transport.together import Together
from clusterctl.wire import Message


def entering(together: Together, name: str) -> tuple[threading.Thread, list[bool]]:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(together.enter(name)), daemon=True)
    thread.start()
    return thread, answers


def test_the_others_begin_as_soon_as_the_first_is_locked() -> None:
    together = Together(["a", "b"], lambda _: True)
    assert together.enter("a")
    thread, answers = entering(together, "b")
    thread.join(0.1)
    assert answers == []
    together.lock("a")
    thread.join(10)
    assert answers == [True]
    assert together.verdict(0) is None
    for name in "ab":
        together.offer(name, Message({}))
    assert together.verdict(0) is True


def test_the_others_do_not_begin_if_another_sync_has_the_first() -> None:
    together = Together(["a", "b"], lambda _: True)
    thread, answers = entering(together, "b")
    together.abort()
    thread.join(10)
    assert answers == [False]


def test_the_lock_of_another_node_than_the_first_lets_nobody_begin() -> None:
    together = Together(["a", "b", "c"], lambda _: True)
    thread, answers = entering(together, "c")
    together.lock("b")
    thread.join(0.1)
    assert answers == []
    together.abort()
    thread.join(10)
