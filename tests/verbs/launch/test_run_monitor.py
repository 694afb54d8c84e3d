"""A run that is followed: late ranks end it, and an interrupt leaves no stream open."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.inventory.cluster import Hang
from clusterctl.transport.interface import Request
from clusterctl.verbs.dump import bring_py_spy, own_py_spy
from clusterctl.verbs.dump.bring_py_spy import PySpyBringer
from clusterctl.verbs.events import Event, NodeEvent, Notice, ignore
from clusterctl.verbs.follow import Tick
from clusterctl.verbs.launch import join_monitor, run_monitor
from clusterctl.verbs.launch.join_monitor import JoinMonitor, StartTimeout
from clusterctl.verbs.launch.run_monitor import RunMonitor
from clusterctl.verbs.launch.run_result import RunResult
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.stop import Stopped, Stopping
from clusterctl.wire import Message
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN, ended, happened


def monitor(pool: FakePool, remembered: list[RunResult], **more: Any) -> RunMonitor:
    log = RunLog(RUN, CLUSTER, events_only=True)

    def remember(result: RunResult) -> RunResult:
        remembered.append(result)
        return result

    return RunMonitor(nodes=pool, log=log, lines=None, remember=remember, **more)


def test_a_run_whose_ranks_are_late_is_stopped_once_while_it_is_followed() -> None:
    stopped: list[str] = []

    def stop(request: Request) -> list[Message]:
        stopped.append(str(request.args["by"]))
        return [Message({"stage": "kill"}), Message({"gone": True, "left": [], "port_free": True})]

    tail = [happened(0, "rank-started", rank=0), ended("a", "stopped")]
    answers: dict[str, Any] = {"a": {"tail": tail, "stop": stop}, "b": {"tail": [], "stop": stop}}
    answers["b"]["tail"] = [ended("b", "stopped")]
    joins = JoinMonitor(replace(PLAN, start_timeout=-1.0))
    seen: list[Event] = []
    remembered: list[RunResult] = []
    result = monitor(FakePool(CLUSTER, answers), remembered, join_monitor=joins).run(
        emit=seen.append
    )
    kinds = [type(one) for one in seen if isinstance(one, StartTimeout | Stopping | Stopped)]
    assert kinds == [StartTimeout, Stopping, Stopping, Stopped]
    assert stopped == ["start-timeout"] * 2
    assert (result.ended_by, remembered) == ("start-timeout", [result])


def test_an_interrupt_while_an_event_is_shown_closes_the_stream_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def follow(*_: object, **__: object) -> Generator[Event]:
        try:
            yield Tick()
            yield Tick()
        finally:
            closed.append("stream")

    def interrupt(_event: Event) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_monitor, "follow", follow)
    remembered: list[RunResult] = []
    followed = monitor(FakePool(CLUSTER, {}), remembered)
    with pytest.raises(KeyboardInterrupt) as caught:
        followed.run(emit=interrupt)
    # The traceback would keep the stream open as long as it is looked at.
    assert caught.tb is not None
    assert (closed, remembered) == (["stream"], [])
    followed.run(emit=ignore)  # it resumes
    assert len(remembered) == 1


def test_py_spy_is_brought_once_the_start_is_over_and_who_has_none_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_monitor, "SETTLE_SECONDS", 0.0)
    asked = threading.Event()

    def dump(request: Request) -> list[Message]:
        assert request.args["store"]
        asked.set()
        return [Message({"state": "running", "note": "it is mounted noexec"})]

    def follow(*_: object, **__: object) -> Generator[Event]:
        yield NodeEvent(node="a", event={"kind": "rank-joined", "rank": 0})
        yield Tick()
        assert not asked.is_set()
        yield NodeEvent(node="b", event={"kind": "rank-joined", "rank": 1})
        yield Tick()
        assert asked.wait(60)
        for _turn in range(60_000):
            if any(isinstance(one, Notice) for one in seen):
                break
            time.sleep(0.001)
            yield Tick()
        yield Tick()

    monkeypatch.setattr(run_monitor, "follow", follow)
    pool = FakePool(CLUSTER, {name: {"dump": dump, "tail": [ended(name)]} for name in "ab"})
    seen: list[Event] = []
    monitor(pool, [], join_monitor=JoinMonitor(PLAN)).run(emit=seen.append)
    (notice,) = [one for one in seen if isinstance(one, Notice)]
    assert notice.text.startswith("a,b: it is mounted noexec; without py-spy, ")
    assert [name for name, request in pool.requests if request.op == "dump"] == ["a", "b"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_launch_that_does_not_follow_waits_for_py_spy_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,  # noqa: FBT001
) -> None:
    late = threading.Event()

    def dump(_request: Request) -> list[Message]:
        assert answers or late.wait(60)
        return [Message({"state": "running"})]

    monkeypatch.setattr(bring_py_spy, "WAIT_SECONDS", 60.0 if answers else 0.1)
    pool = FakePool(CLUSTER, {name: {"dump": dump} for name in "ab"})
    seen: list[Event] = []
    PySpyBringer(pool, RUN).bring_now(CLUSTER, emit=seen.append)
    late.set()
    said = [one.text for one in seen if isinstance(one, Notice)]
    assert ["not all had py-spy within" in text for text in said] == ([] if answers else [True])
    off = replace(CLUSTER, job=replace(CLUSTER.job, hang=Hang(after=0.0)))
    unasked = FakePool(CLUSTER, {})
    PySpyBringer(unasked, RUN).bring_now(off, emit=seen.append)
    assert unasked.requests == []


def test_a_machine_without_py_spy_for_linux_tells_where_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_py_spy, "find_py_spy", lambda: None)
    note = Message({"state": "running", "note": "py-spy is not on this node"})
    pool = FakePool(CLUSTER, {name: {"dump": [note]} for name in "ab"})
    seen: list[Event] = []
    PySpyBringer(pool, RUN).bring_now(CLUSTER, emit=seen.append)
    (notice,) = [one for one in seen if isinstance(one, Notice)]
    assert notice.text.startswith("a,b: py-spy is not on this node")
    assert "next to the job's python" in notice.hint
