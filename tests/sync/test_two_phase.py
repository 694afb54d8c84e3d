"""Nodes of one sync: the first is locked before the others, which then plan beside it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.wire import Message


def entering(together: TwoPhaseCommit, name: str) -> tuple[threading.Thread, list[bool]]:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(together.enter(name)), daemon=True)
    thread.start()
    return thread, answers


def test_the_others_begin_as_soon_as_the_first_is_locked() -> None:
    together = TwoPhaseCommit(["a", "b"], lambda _: True)
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
    together = TwoPhaseCommit(["a", "b"], lambda _: True)
    thread, answers = entering(together, "b")
    together.abort()
    thread.join(10)
    assert answers == [False]


def test_the_lock_of_another_node_than_the_first_lets_nobody_begin() -> None:
    together = TwoPhaseCommit(["a", "b", "c"], lambda _: True)
    thread, answers = entering(together, "c")
    together.lock("b")
    thread.join(0.1)
    assert answers == []
    together.abort()
    thread.join(10)


A, B = Message({"plan": "a"}), Message({"plan": "b"})


def test_nothing_is_judged_before_every_node_has_given_its_plan_or_ended() -> None:
    judged: list[dict[str, Message]] = []

    def judge(plans: Mapping[str, Message]) -> bool:
        judged.append(dict(plans))
        return True

    together = TwoPhaseCommit(["a", "b", "c"], judge)
    together.offer("a", A)
    together.offer("b", B)
    assert (judged, together.verdict(0)) == ([], None)
    together.withdraw("c")
    assert together.verdict(0) is True
    assert judged == [{"a": A, "b": B}]
    together.withdraw("a")
    assert len(judged) == 1


def test_what_the_judge_refuses_and_what_it_cannot_judge_changes_nothing() -> None:
    refused = TwoPhaseCommit(["a"], lambda _: False)
    refused.offer("a", A)
    assert refused.verdict(0) is False
    assert not refused.enter("a")

    def fails(_plans: Mapping[str, Message]) -> bool:
        raise OSError("no screen to ask on")

    broken = TwoPhaseCommit(["a", "b"], fails)
    broken.offer("a", A)
    with pytest.raises(OSError, match="no screen"):
        broken.offer("b", B)
    assert broken.verdict(0) is False


def test_an_end_of_the_first_node_holds_nobody_up() -> None:
    together = TwoPhaseCommit(["a", "b"], lambda _: True)
    together.withdraw("a")
    assert together.enter("b")


def test_all_are_held_until_the_last_has_its_files() -> None:
    together = TwoPhaseCommit(["a", "b", "c"], lambda _: True)
    together.arrive("a")
    together.withdraw("c")
    assert together.complete(0) is None
    together.arrive("b")
    assert together.complete(0) is True


def test_who_waits_is_told_at_once() -> None:
    """Of the verdict, of the last arrival, and of an end to it all."""
    told: list[bool | None] = []
    for change, wait in (
        (lambda together: together.offer("a", A), TwoPhaseCommit.verdict),
        (lambda together: together.arrive("a"), TwoPhaseCommit.complete),
        (lambda together: together.withdraw("a"), TwoPhaseCommit.complete),
        (TwoPhaseCommit.abort, TwoPhaseCommit.verdict),
        (TwoPhaseCommit.abort, TwoPhaseCommit.complete),
    ):
        together = TwoPhaseCommit(["a"], lambda _: True)
        waiting = threading.Thread(
            target=lambda wait=wait, together=together: told.append(wait(together, 60))
        )
        waiting.start()
        change(together)
        waiting.join(30)
        assert not waiting.is_alive()
    assert told == [True, True, True, False, False]


def test_what_has_begun_is_not_called_off() -> None:
    together = TwoPhaseCommit(["a"], lambda _: True)
    together.offer("a", A)
    together.abort()
    assert together.verdict(0) is True
    assert together.complete(0) is False
