"""Starting a run: the master first, then the workers; all or nothing; secrets only in the body."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import Interrupted, LaunchRefused, NodeError
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Event, Notice, Progress, ignore
from clusterctl.verbs.launch.start_run import Started, start_run
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN

SECRET = {"HF_TOKEN": "hunter2", "OTHER": "not asked for"}
GONE = [Message({"gone": True, "left": [], "port_free": True})]


def up(port: int) -> list[Message]:
    return [Message({"event": "up", "pid": 42, "link_port": port})]


def refusal(kind: str, message: str, **more: Any) -> list[Message]:
    return [Message({"error": {"kind": kind, "message": message, **more}})]


def pool(a: Any, b: Any) -> FakePool:
    return FakePool(CLUSTER, {"a": {"start": a, "stop": GONE}, "b": {"start": b, "stop": GONE}})


def begin(nodes: FakePool) -> list[Event]:
    seen: list[Event] = []
    plan = replace(PLAN, env_from=("HF_TOKEN",))
    start_run(nodes, CLUSTER, plan, SECRET, emit=seen.append)
    return seen


def test_workers_start_once_the_masters_process_is_up_and_are_told_its_port() -> None:
    nodes = pool(up(5555), up(0))
    seen = begin(nodes)
    assert [event.node for event in seen if isinstance(event, Started)] == ["a", "b"]
    waits = [event.waiting_for for event in seen if isinstance(event, Progress)]
    assert waits == [("a", "b"), ("b",)]
    jobs: list[dict[str, Any]] = [dict(request.args["job"]) for _, request in nodes.requests]  # type: ignore[call-overload]
    assert [job["link"]["port"] for job in jobs] == [0, 5555]
    assert [job["run"] for job in jobs] == [RUN, RUN]


def test_nodes_are_told_to_start_by_force_what_is_launched_so() -> None:
    told = []
    for force in (False, True):
        nodes = pool(up(1), up(0))
        start_run(nodes, CLUSTER, PLAN, {}, force=force, emit=ignore)
        told.append([request.args["forces"] for _, request in nodes.requests])
    assert told == [[False, False], [True, True]]


def test_secrets_travel_in_the_body_only_and_only_those_asked_for() -> None:
    nodes = pool(up(1), up(0))
    begin(nodes)
    for _, request in nodes.requests:
        assert "hunter2" not in json.dumps(dict(request.args))
        assert json.loads(request.body)["env"] == {"HF_TOKEN": "hunter2"}
    keys = ["key" in json.loads(request.body) for _, request in nodes.requests]
    assert keys == [True, False]


def test_a_master_that_does_not_start_leaves_the_workers_alone() -> None:
    nodes = pool(refusal("exec", "command not found: x", hint="write its full path"), up(0))
    with pytest.raises(LaunchRefused, match="a: command not found: x") as caught:
        begin(nodes)
    assert (caught.value.hint, caught.value.by) == (
        "the node suggests: write its full path",
        "start",
    )
    assert [(name, request.op) for name, request in nodes.requests] == [
        ("a", "start"),
        ("a", "stop"),
    ]


@pytest.mark.parametrize(
    ("answer", "by"),
    [
        (refusal("busy", "run other of bob holds it"), "busy"),
        (refusal("died", "no module named x"), "start"),
        (Reply.failed("b", NodeError("lost", "answer")), "start"),
    ],
)
def test_a_worker_that_does_not_start_ends_what_was_started(answer: Any, by: str) -> None:
    nodes = pool(up(1), answer)
    with pytest.raises(LaunchRefused, match="b: ") as caught:
        begin(nodes)
    assert caught.value.by == by
    stopped = {name for name, request in nodes.requests if request.op == "stop"}
    assert stopped == {"a", "b"}


def test_a_start_that_leaves_something_behind_is_not_only_busy() -> None:
    """A launch that waits would try again, beside what is left of its own run."""
    stuck = [Message({"gone": False, "left": [{"pid": 7}], "port_free": True})]
    busy = {"start": refusal("busy", "run other of bob holds it"), "stop": GONE}
    nodes = FakePool(CLUSTER, {"a": {"start": up(1), "stop": stuck}, "b": busy})
    with pytest.raises(LaunchRefused, match=f"a: something of {RUN} is left") as caught:
        begin(nodes)
    assert (caught.value.by, caught.value.hint) == ("start", f"clusterctl stop {RUN}")


def test_an_interrupt_in_between_ends_what_was_started() -> None:
    def interrupted(_request: Request) -> list[Message]:
        raise KeyboardInterrupt

    answer: Callable[[Request], list[Message]] = interrupted
    nodes = pool(up(1), answer)
    with pytest.raises(Interrupted, match=f"{RUN}: interrupted; nothing of it is left"):
        begin(nodes)
    assert {name for name, request in nodes.requests if request.op == "stop"} == {"a", "b"}


def test_an_interrupt_while_an_event_is_shown_ends_what_was_started() -> None:
    def show(event: Event) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    nodes = pool(up(1), up(0))
    with pytest.raises(Interrupted, match="nothing of it is left"):
        start_run(nodes, CLUSTER, PLAN, {}, emit=show)
    assert [(name, request.op) for name, request in nodes.requests] == [
        ("a", "start"),
        ("a", "stop"),
    ]


def test_an_interrupt_says_what_it_could_not_end() -> None:
    def interrupted(_request: Request) -> list[Message]:
        raise KeyboardInterrupt

    stuck = [Message({"gone": False, "left": [{"pid": 7}], "port_free": True})]
    a: dict[str, Any] = {"start": up(1), "stop": stuck}
    b: dict[str, Any] = {"start": interrupted, "stop": Reply.failed("b", NodeError("lost", "x"))}
    with pytest.raises(Interrupted) as caught:
        begin(FakePool(CLUSTER, {"a": a, "b": b}))
    assert str(caught.value).splitlines() == [
        f"a: something of {RUN} is left",
        f"b: what is left of {RUN} is unknown: lost (x)",
    ]
    assert caught.value.hint == f"clusterctl stop {RUN}"
    again: dict[str, Any] = {"start": up(1), "stop": interrupted}
    with pytest.raises(Interrupted, match="not known what is left") as caught:
        begin(FakePool(CLUSTER, {"a": again, "b": b}))
    assert str(caught.value).endswith("left on a, b")
    assert caught.value.hint == f"clusterctl stop {RUN}"


def test_an_interrupt_while_a_refused_start_is_ended_keeps_the_reason() -> None:
    def interrupted(_request: Request) -> list[Message]:
        raise KeyboardInterrupt

    a: dict[str, Any] = {"start": up(1), "stop": interrupted}
    b: dict[str, Any] = {"start": refusal("exec", "no program", hint="chmod +x it"), "stop": GONE}
    with pytest.raises(LaunchRefused, match="b: no program") as caught:
        begin(FakePool(CLUSTER, {"a": a, "b": b}))
    assert (caught.value.by, caught.value.hint) == (
        "start",
        f"the node suggests: chmod +x it\nclusterctl stop {RUN}",
    )
    assert str(caught.value).endswith(f"{RUN}: interrupted; it is not known what is left on a, b")


def test_a_display_that_breaks_does_not_keep_the_start_from_being_ended() -> None:
    def show(event: Event) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt
        if isinstance(event, Notice):
            raise OSError

    nodes = pool(up(1), up(0))
    with pytest.raises(OSError):
        start_run(nodes, CLUSTER, PLAN, {}, emit=show)
    assert ("a", "stop") in [(name, request.op) for name, request in nodes.requests]


def test_each_failure_has_its_hint() -> None:
    cluster = replace(CLUSTER, nodes=(*CLUSTER.nodes, replace(CLUSTER.node("b"), name="c")))
    plan = replace(PLAN, nodes=(*PLAN.nodes, replace(PLAN.nodes[1], node="c")))
    answers = {
        "a": {"start": up(1), "stop": GONE},
        "b": {"start": refusal("exec", "no program", hint="chmod +x it"), "stop": GONE},
        "c": {"start": refusal("workdir", "no folder", hint="clusterctl sync"), "stop": GONE},
    }
    with pytest.raises(LaunchRefused) as refused:
        start_run(FakePool(cluster, answers), cluster, plan, {}, emit=ignore)
    assert refused.value.hint == (
        "b: the node suggests: chmod +x it\nc: the node suggests: clusterctl sync"
    )
