"""The fake pool gives what it was told, in the form that the real one has."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport.interface import Reply, Request
from clusterctl.wire import Message
from tests.fake_pool import Answers, FakePool
from tests.sshd_servers import cluster_of

A, B = (Node(host=name, name=name, ssh=Ssh()) for name in "ab")
HELLO = Request(op="hello", args={"n": 1})


def test_answers_lists_functions_and_failures() -> None:
    lost = replace(Reply.failed("b", NodeError("lost", "answer")), messages=(Message({"half": 1}),))
    answers: Answers = {
        "a": {"hello": lambda request: [Message({"first": 1}), Message({"got": request.args})]},
        "b": {"hello": lost},
    }
    with FakePool(cluster_of(A, B), answers) as pool:
        good, bad = pool.call({"a": HELLO, "b": HELLO})
        assert [r.state for r in pool.open()] == ["ok", "ok"]
    assert good.ok
    assert [m.head for m in good.messages] == [{"first": 1}, {"got": {"n": 1}, "end": True}]
    assert (bad.state, [m.head for m in bad.messages]) == ("lost", [{"half": 1}])
    assert pool.requests == [("a", HELLO), ("b", HELLO)]


def test_a_node_without_answers_is_unreachable() -> None:
    pool = FakePool(cluster_of(A, B), {"a": {}})
    assert [r.state for r in pool.open()] == ["ok", "unreachable"]
    assert [r.state for r in pool.call({"b": HELLO})] == ["unreachable"]
    ((_, reply),) = pool.follow({"b": pool.start("b", HELLO)})
    assert isinstance(reply, Reply)
    assert reply.state == "unreachable"


def test_what_is_followed_ends_with_a_reply() -> None:
    pool = FakePool(cluster_of(A), {"a": {"hello": [Message({"x": 1})]}})
    call = pool.start("a", HELLO)
    call.send(Message({"more": 1}))
    (first, reply) = pool.follow({"a": call})
    assert first == ("a", Message({"x": 1, "end": True}))
    assert isinstance(reply[1], Reply)
    assert call.sent == [Message({"more": 1})]
