"""A start that does not gather is ended for a problem that stays, and leaves stacks before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.supervisor.watch import start_watch
from clusterctl.node.supervisor.watch.start_watch import StartWatch

AWAY = "rank 0 does not reach b"


@pytest.mark.parametrize(
    ("problems", "steps"),
    [
        ([""], []),
        ([AWAY, AWAY], ["stacks", "end"]),
        ([AWAY, "", ""], ["stacks"]),
        ([AWAY, "rank 1 does not reach b", ""], ["stacks"]),
    ],
)
def test_only_a_problem_that_two_looks_find_ends_a_start(
    monkeypatch: pytest.MonkeyPatch, problems: list[str], steps: list[str]
) -> None:
    monkeypatch.setattr(start_watch, "AGAIN_SECONDS", 0.0)
    left, done = list(problems), list[str]()
    gathering: Any = SimpleNamespace(launcher_joined=None, problem=lambda **_: left.pop(0))
    peers: Any = SimpleNamespace(missing=(), give_up_on_missing=lambda: None, others_over=False)
    job: Any = {"node": "a", "start_timeout": 0.001}
    record: Any = None
    loop = EventLoop()
    watch = StartWatch(
        loop, job, record, gathering, peers,
        lambda: "end" in done, lambda _: done.append("end"), lambda: done.append("stacks"),
    )  # fmt: skip
    watch.start()
    while left:
        loop.run_once()
    assert done == steps
