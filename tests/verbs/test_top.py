"""`top` follows a run on nodes that answer, never had it, or were started by another version."""

from __future__ import annotations

from typing import Any

from clusterctl.errors import NodeError
from clusterctl.model.from_json import from_json
from clusterctl.model.samples import MOST_PARTS, Samples
from clusterctl.transport.interface import Reply
from clusterctl.verbs.top.top import Watcher
from clusterctl.verbs.top.use import KEPT, NodeUse
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, ended, part


def told(node: str, state: str = "running", **used: Any) -> Message:
    return Message({"node": part(node, state), "samples": {"cpus": 2, **used}})


def pool(a: Any, b: Any) -> FakePool:
    return FakePool(
        CLUSTER,
        {name: {"watch": each, "tail": [ended(name)]} for name, each in (("a", a), ("b", b))},
    )


def test_what_nodes_send_is_joined_with_what_they_sent_before() -> None:
    first = told("a", time=[1.0, 6.0], cpu_percent=[20, 40])
    then = told("a", "finished", time=[11.0], cpu_percent=[100])
    watcher = Watcher(pool([first, then], [told("b", "finished")]), RUN, CLUSTER)
    for _ in watcher.follow():
        pass
    top = watcher.snapshot()
    a, b = top.nodes
    assert (top.state, a.state, b.state) == ("finished", "finished", "finished")
    assert a.now
    assert (a.now.time, a.now.cpu_percent, a.now.trend) == (11.0, 50.0, (10.0, 20.0, 50.0))
    assert b.now is None


def test_a_node_that_never_had_the_run_is_not_waited_for() -> None:
    never = [Message({"error": {"kind": "no-run", "message": "it was not here"}})]
    watcher = Watcher(pool([told("a")], never), RUN, CLUSTER)
    assert not watcher.complete
    top = watcher.ask()
    assert watcher.complete
    assert [one.state for one in top.nodes] == ["running", "absent"]


def test_a_run_of_an_earlier_version_is_not_asked_again() -> None:
    older = NodeError("older", "operation", "an earlier version", node="a")
    nodes = pool(Reply.failed("a", older), [told("b", "finished")])
    watcher = Watcher(nodes, RUN, CLUSTER)
    for _ in watcher.follow():
        pass
    assert [name for name, request in nodes.requests if request.op == "watch"] == ["a", "b"]
    assert watcher.view().nodes[0].error is not None


def test_samples_after_a_lost_connection_are_asked_for_by_the_nodes_clock() -> None:
    watcher = Watcher(pool([told("a", time=[7.0])], [told("b")]), RUN, CLUSTER)
    watcher.ask()
    assert watcher._request("a", follow=True).args["since"] == 7.0
    assert watcher._request("b", follow=True).args["since"] == 0.0


def test_as_many_samples_are_kept_as_are_shown() -> None:
    use = NodeUse()
    for number in range(2 * KEPT):
        gpus = [{"index": n, "percent": [number]} for n in range(2)]
        use.take(from_json(Samples, {"time": [number], "gpus": gpus}, ""))
    assert use.now
    assert use.now.trend == tuple(range(KEPT, 2 * KEPT))
    assert len(use._chunks) == KEPT


def test_a_node_with_more_gpus_than_there_are_is_refused() -> None:
    gpus = [{"index": n} for n in range(MOST_PARTS + 1)]
    message = Message({"node": part("a"), "samples": {"gpus": gpus}})
    watcher = Watcher(pool([message], [told("b")]), RUN, CLUSTER)
    error = watcher.ask().nodes[0].answer.error
    assert error is not None
    assert f"{MOST_PARTS} GPUs" in str(error)
