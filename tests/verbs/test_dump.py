"""`dump` asks every node once, and sends py-spy only to those that lack it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import OPERATION, NodeError, UsageError
from clusterctl.model.dump import NodeDump
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.dump import dump as module
from clusterctl.verbs.dump.dump import DumpQuery, DumpResult, dump, send_py_spy
from clusterctl.verbs.dump.own_py_spy import OwnPySpy
from clusterctl.verbs.events import ignore
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.hostile import stood_still
from tests.verbs.run_answers import CLUSTER, RUN

SPY = OwnPySpy(program=b"\x7fELF and more", machine="x86_64")
SILENT = Reply.failed("b", NodeError("timeout", "connect", "no answer in 5 s"))


@pytest.fixture(autouse=True)
def spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_py_spy", lambda: SPY)


def has_it(node: str) -> list[Message]:
    return [Message({"dump": stood_still(node), "state": "running"})]


def lacks_it(request: Request) -> list[Message]:
    return has_it("b") if request.body else [Message({"needs_tool": True})]


def test_py_spy_goes_only_to_the_nodes_that_lack_it() -> None:
    pool = FakePool(CLUSTER, {"a": {"dump": has_it("a")}, "b": {"dump": lacks_it}})
    result = dump(pool, RUN, CLUSTER, DumpQuery(), emit=ignore)
    assert [one.node for one in result.dumps] == ["a", "b"]
    assert [(name, request.body) for name, request in pool.requests] == [
        ("a", b""), ("b", b""), ("b", SPY.packed),
    ]  # fmt: skip
    assert result.verdict is not None
    assert result.document()["verdict"]["text"]


def test_without_py_spy_no_node_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_py_spy", lambda: None)
    pool = FakePool(CLUSTER, {"a": {"dump": has_it("a")}, "b": {"dump": lacks_it}})
    result = dump(pool, RUN, CLUSTER, DumpQuery(), emit=ignore)
    assert [one.node for one in result.dumps] == ["a"]
    assert len(pool.requests) == 2


def test_py_spy_is_brought_to_the_nodes_that_lack_it_and_who_has_none_is_told() -> None:
    here = [Message({"state": "running"})]

    def lacks(request: Request) -> list[Message]:
        no = {"state": "running", "note": "no disk space"}
        return [Message(no if request.body else {"needs_tool": True})]

    pool = FakePool(CLUSTER, {"a": {"dump": here}, "b": {"dump": lacks}})
    assert send_py_spy(pool, RUN, CLUSTER, limit=60.0) == {"b": "no disk space"}
    assert [(name, request.body) for name, request in pool.requests] == [
        ("a", b""), ("b", b""), ("b", SPY.packed),
    ]  # fmt: skip
    assert all(request.args["store"] for _, request in pool.requests)
    refuses = Reply.failed("b", NodeError("state-folder", OPERATION, "/var/tmp is full"))
    for reply, told in ((refuses, {"b": "/var/tmp is full"}), (SILENT, {})):
        pool = FakePool(CLUSTER, {"a": {"dump": here}, "b": {"dump": reply}})
        assert send_py_spy(pool, RUN, CLUSTER, limit=60.0) == told


def test_a_silent_node_is_named_and_counts_for_the_verdict() -> None:
    pool = FakePool(CLUSTER, {"a": {"dump": has_it("a")}, "b": {"dump": SILENT}})
    result = dump(pool, RUN, CLUSTER, DumpQuery(), emit=ignore)
    assert [error.node for error in result.silent] == ["b"]
    assert set(result.document()["silent"]) == {"b"}


@pytest.mark.parametrize(
    ("query", "asked", "only"),
    [
        ({"node": "b"}, {"b"}, None),
        ({"rank": "0-1,7"}, {"a", "b"}, [0, 1, 7]),
        ({"rank": 3}, {"a", "b"}, [3]),
    ],
)
def test_a_part_of_the_run_has_no_verdict(
    query: dict[str, Any], asked: set[str], only: list[int] | None
) -> None:
    pool = FakePool(CLUSTER, {name: {"dump": has_it(name)} for name in "ab"})
    result = dump(pool, RUN, CLUSTER, DumpQuery(**query), emit=ignore)
    assert {name for name, _ in pool.requests} == asked
    assert all(request.args["only"] == only for _, request in pool.requests)
    assert result.verdict is None


def test_the_verdict_is_made_from_stacks_of_one_time() -> None:
    kept = NodeDump(run=RUN, node="a", time=0.0)
    states = {"a": "lost", "b": "running", "c": "failed"}
    known = DumpResult(run=RUN, time=0.0, dumps=(kept,), states=states, notes={}, silent=())
    live = replace(kept, node="b")
    assert replace(known, dumps=(kept, live)).judged == (live,)
    assert replace(known, dumps=(kept, live)).untold == ()
    over = replace(known, states={"a": "failed", "c": "failed"})
    assert (over.judged, over.untold) == ((kept,), ("c",))
    assert over.verdict
    assert over.verdict.text == "c told no stacks: what its ranks do is unknown"
    at_end = replace(kept, node="c", timed_out=True)
    assert replace(over, dumps=(kept, at_end)).judged == (at_end,)
    assert replace(over, dumps=(kept, at_end), states={"b": "failed"}).untold == ()


@pytest.mark.parametrize("query", [{"rank": "one"}, {"node": "gpu9"}])
def test_what_the_run_does_not_have_is_refused(query: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        dump(FakePool(CLUSTER, {}), RUN, CLUSTER, DumpQuery(**query), emit=ignore)
