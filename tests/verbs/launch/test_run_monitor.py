"""A run that is followed: late ranks end it, and an interrupt leaves no stream open."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Event, ignore
from clusterctl.verbs.follow import Tick
from clusterctl.verbs.launch import run_monitor
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
    return RunMonitor(nodes=pool, log=log, lines=None, remember=remembered.append, **more)


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
