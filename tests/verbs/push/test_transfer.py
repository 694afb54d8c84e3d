"""How a transfer deals with nodes that die, links that break, and blocks that are wrong."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest

from clusterctl.errors import ClusterError, NodeError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.plan.certificate import make_identity
from clusterctl.transport.interface import Call, Reply
from clusterctl.verbs.events import ignore
from clusterctl.verbs.push import transfer as module
from clusterctl.verbs.push.member import Member
from clusterctl.verbs.push.result import HERE, WantedPath
from clusterctl.verbs.push.transfer import SOURCE, Transfer
from clusterctl.verbs.push.wanted import Source, hint_of
from clusterctl.wire import Message

NAMES = ("a", "b", "c")
SIZE = 4 * module.STALL_BYTES
IDENTITY = make_identity("test")


class Sent:
    """Stands for a node's call: keeps what is sent to it."""

    def __init__(self) -> None:
        self.heads: list[dict[str, Any]] = []

    def send(self, message: Message) -> None:
        self.heads.append(message.head)

    def links(self) -> list[str]:
        return [head["peer"] for head in self.heads if head["step"] in {"send", "relay"}]


def begun(source: str = "s") -> tuple[Transfer, dict[str, Sent]]:
    """Return a transfer from a source through a, b and c that has begun to send."""
    place = dict.fromkeys(NAMES, "/m")
    sent = {name: Sent() for name in (SOURCE, *NAMES)}
    found = Transfer(
        wanted=WantedPath(shown="/m", here=None, sources=place, targets=place),
        source=Source(name=source, path="/m", facts=PathFacts(path="/m")),
        pool=cast("Any", None),
        source_pool=cast("Any", None),
        addresses={name: f"10.0.0.{n}" for n, name in enumerate(NAMES)},
        emit=ignore,
        calls=cast("dict[str, Call]", sent),
    )
    for name in NAMES:
        found.members[name] = Member(
            name=name, token=name, step="listening", port=1, identity=IDENTITY, missing=SIZE
        )
    found._advance()
    assert [sent[name].links() for name in sent] == [["a"], ["b"], ["c"], []]
    return found, sent


def said(found: Transfer, name: str, **head: Any) -> None:
    found._take(name, Message(head))


@pytest.mark.parametrize(
    ("dead", "before", "after"), [("a", SOURCE, "b"), ("b", "a", "c"), ("c", "b", None)]
)
def test_the_node_before_one_that_died_serves_the_next(
    dead: str, before: str, after: str | None
) -> None:
    found, sent = begun()
    found._drop(found.members[dead], NodeError("lost", "answer", "it broke"))
    assert sent[before].links()[1:] == ([after] if after else [])
    assert dead not in found.chain
    assert found._outcome(found.members[dead]).state == "unreachable"
    for name in NAMES:
        if name != dead:
            assert not found._over()
            said(found, name, complete=True)
    assert found._over()


def test_a_node_that_died_since_the_last_path_is_left_out() -> None:
    found, _ = begun()
    found._take("b", Reply.failed("b", NodeError("refused", "connect", "", "ping it")))
    outcome = found._outcome(found.members["b"])
    assert (outcome.state, outcome.hint) == ("unreachable", "ping it")


def test_a_link_that_a_node_ended_with_a_complaint_is_not_made_again() -> None:
    """What the source finds decides; until then nothing goes through this machine for it."""
    found, sent = begun(HERE)
    said(found, "a", bad=2)
    said(found, SOURCE, lost="a", why="reset")
    assert sent[SOURCE].links() == ["a"]
    assert not found.relaying
    said(found, SOURCE, right=True, to="a")
    assert found._outcome(found.members["a"]).state == "failed"
    assert sent[SOURCE].links() == ["a", "b"]


def test_two_dead_neighbors_are_bridged() -> None:
    found, sent = begun()
    found._drop(found.members["b"], NodeError("lost", "answer", "it broke"))
    found._drop(found.members["a"], NodeError("lost", "answer", "it broke"))
    assert sent[SOURCE].links() == ["a", "c"]


def test_a_link_that_breaks_is_made_again_and_then_the_source_serves_that_node() -> None:
    """Which of the two is at fault, only one of them knows."""
    found, sent = begun()
    for _ in range(3):
        said(found, "a", lost="b", why="refused")
    assert sent["a"].links() == ["b", "b", "b"]
    assert sent[SOURCE].links() == ["a", "b", "c"]  # for a moment
    assert found.chain == ["c", "a"]
    said(found, "a", lost="b", why="refused")  # late
    said(found, "c", complete=True)
    found._advance()
    assert found.chain == ["b"]
    said(found, "a", complete=True)  # c serves it still
    for _ in range(3):
        said(found, SOURCE, lost="b", why="refused")
    outcome = found._outcome(found.members["b"])
    assert outcome.state == "failed"
    assert "s cannot send to it at 10.0.0.1:1: refused" in outcome.words
    assert found._over()


def test_a_link_over_which_nothing_comes_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, sent = begun()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + module.STALL_SECONDS - 1)
    said(found, "a", received=module.STALL_BYTES)
    monkeypatch.setattr(time, "monotonic", lambda: now + module.STALL_SECONDS + 1)
    found._find_stalled()
    assert sent[SOURCE].links() == ["a"]  # it still receives
    said(found, "a", received=SIZE, complete=True)
    found._find_stalled()
    found._find_stalled()
    assert sent["a"].links() == ["b", "b"]
    assert sent["b"].links() == ["c"]  # it waits for b


def test_the_word_of_one_node_expels_no_other() -> None:
    """Node b lies of a, or a sent it wrong blocks: both get what they need."""
    found, sent = begun()
    said(found, "b", bad=7)
    assert [member.error for member in found.members.values()] == [None] * 3
    assert found.chain == ["c", "a"]  # a serves nobody
    assert sent[SOURCE].links()[-1] == "c"
    assert sent["c"].links() == ["a"]
    said(found, "b", bad=7)  # it was said before the source serves it
    said(found, "c", complete=True)
    found._advance()
    assert found.chain == ["b"]
    assert sent[SOURCE].links()[-1] == "b"
    said(found, "b", complete=True)
    found._advance()
    assert found.chain == ["a"]
    assert sent[SOURCE].links()[-1] == "a"
    said(found, "a", complete=True)
    assert found._over()
    assert {found._outcome(member).state for member in found.members.values()} == {"updated"}


def test_a_node_that_is_caught_holds_nobody_back() -> None:
    """It is the only one that the source serves, and takes its time."""
    found, sent = begun()
    found._drop(found.members["c"], NodeError("lost", "answer", "it broke"))
    said(found, "b", bad=7)  # of a
    assert found.chain == ["a"]
    found._advance()
    found._advance()
    assert found.chain == ["b"]
    before = sent[SOURCE].links()
    assert before[-1] == "b"
    said(found, SOURCE, lost="a", why="it broke")  # late
    assert sent[SOURCE].links() == before
    said(found, "b", complete=True)
    found._advance()
    found._advance()
    assert sent[SOURCE].links() == [*before, "a"]


@pytest.mark.parametrize("step", [1, module.STALL_BYTES])
def test_a_node_that_takes_a_byte_now_and_then_comes_to_an_end(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that says that more came than it lacks."""
    found, _ = begun()
    for name in ("b", "c"):
        said(found, name, complete=True)
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for turn in range(20):
        clock[0] += module.STALL_SECONDS - 10
        said(found, "a", received=turn * step)
        found._find_stalled()
    outcome = found._outcome(found.members["a"])
    assert outcome.state == "failed"
    assert "less than 1.0 MB arrived in 60 s" in outcome.words
    assert outcome.received <= SIZE


def test_a_node_cannot_lack_more_than_there_is() -> None:
    found, _ = begun()
    found.totals = SIZE, 1
    found.members["a"].step = "compare"
    told = {"missing": SIZE + 1, "files": 1, "free": SIZE + 1, "free_files": 1}
    found._take("a", Message({"found": told}))
    assert (found.members["a"].missing, found.members["a"].step) == (SIZE, "found")


def test_a_slow_link_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found, sent = begun()
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for part in range(1, 41):
        clock[0] += module.STALL_SECONDS / 11
        said(found, "a", received=part * SIZE // 40)
        found._find_stalled()
    assert sent[SOURCE].links() == ["a"]


def test_a_node_that_lies_of_the_source_is_found_out_and_leaves_alone() -> None:
    found, sent = begun()
    said(found, "a", bad=7)
    said(found, "a", bad=8)
    asked = [head for head in sent[SOURCE].heads if head["step"] == "recheck"]
    assert asked == [{"step": "recheck", "block": 7, "peer": "a"}]
    said(found, SOURCE, right=True, to="a")
    outcome = found._outcome(found.members["a"])
    assert outcome.state == "failed"
    assert "it found blocks wrong that s sent and has right" in outcome.words
    assert outcome.hint == "clusterctl check --nodes a"
    assert found.chain == ["b", "c"]
    assert sent[SOURCE].links() == ["a", "b"]


def test_a_source_that_changes_ends_the_push() -> None:
    found, _ = begun()
    said(found, "a", bad=7)
    with pytest.raises(ClusterError, match="changed while it was sent"):
        said(found, SOURCE, right=False, to="a")


def test_two_that_accuse_each_other_come_to_an_end() -> None:
    found, _ = begun()
    said(found, "b", bad=0)  # of a
    said(found, "a", bad=0)  # of c
    said(found, "c", bad=0)  # of the source
    said(found, SOURCE, right=True, to="c")
    for name in ("b", "a"):
        found._advance()
        assert found.chain == [name]
        said(found, name, bad=0)
        said(found, SOURCE, right=True, to=name)
    assert found._over()


def test_no_two_links_have_the_same_ticket() -> None:
    found, sent = begun()
    for _ in range(2):
        said(found, "a", lost="b", why="refused")
    shown = [head["ticket"] for one in sent.values() for head in one.heads if "ticket" in head]
    assert len(shown) == len(set(shown)) == 5


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (HERE, "tar -cf '/m x'.tar -C '/m x' ."),
        ("n", "clusterctl exec --nodes n -- tar -cf '/m x'.tar -C '/m x' ."),
    ],
)
def test_a_path_of_too_many_files_is_to_be_packed(source: str, hint: str) -> None:
    found, _ = begun(source)
    found.source = replace(found.source, path="/m x")
    error = NodeError("too-many-files", "operation", "it has more")
    assert hint_of(found.source, error) == f"push one file: {hint}"


def test_what_this_machine_cannot_connect_to_it_reaches_over_ssh() -> None:
    found, sent = begun(HERE)
    said(found, SOURCE, lost="a", why="no route")
    assert sent["a"].heads[-1] == {"step": "feed"}
    found._take("a", Message({"feeding": True}, b"blocks"))
    assert sent[SOURCE].links() == ["a", "a"]
    found._take(SOURCE, Message({"block": 3, "to": "a", "more": False}, b"data"))
    assert sent["a"].heads[-1] == {"step": "block", "index": 3, "more": False}
    found._take(SOURCE, Message({"block": 3, "to": "c", "more": False}, b"data"))
    assert not sent["c"].heads  # not the first of the chain


def test_no_node_can_end_the_relay_of_another() -> None:
    found, sent = begun(HERE)
    found._take("a", Message({"feeding": True}, b"nobody asked"))
    assert sent[SOURCE].links() == ["a"]
    said(found, SOURCE, lost="a", why="no route")
    for name in ("b", "c"):
        found._take(name, Message({"feeding": True}, b"blocks"))
    assert sent[SOURCE].links() == ["a"]
    for _ in range(2):
        found._take("a", Message({"feeding": True}, b"blocks"))
    assert sent[SOURCE].links() == ["a", "a"]
    said(found, SOURCE, lost="a", why="it is not a node of this push")
    found._take("a", Message({"feeding": True}, b"blocks"))
    assert sent[SOURCE].links() == ["a", "a", "a"]
    for _ in range(2):
        said(found, SOURCE, lost="a", why="it is not a node of this push")
    assert "is not a node of this push" in found._outcome(found.members["a"]).words
    assert found.chain == ["b", "c"]


def test_an_answer_that_is_none_ends_a_nodes_part() -> None:
    found, sent = begun()
    said(found, "a", received=-5)
    assert found._outcome(found.members["a"]).state != "updated"
    assert sent[SOURCE].links() == ["a", "b"]
