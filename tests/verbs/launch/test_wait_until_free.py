"""For whom a launch waits, by what the checks found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.checks.finding import Finding
from clusterctl.errors import Interrupted, LaunchRefused, UsageError
from clusterctl.verbs.events import Event, Waiting, ignore
from clusterctl.verbs.launch import wait_until_free
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.launch.wait_until_free import GPUS, LOCK, MOST_PORTS, PORT
from clusterctl.verbs.runs.records import Records
from tests.verbs.launch.test_launch import RECORD, VERDICT
from tests.verbs.run_answers import CLUSTER, PLAN


def finding(check: str, status: Any, found: str) -> Finding:
    return Finding(check=check, status=status, nodes=("b",), message="m", found=found)


FINDINGS = (
    finding("node.clock", "warn", "late"),
    finding(GPUS, "warn", "up to 9 MiB by python of ada (pid 7)"),
)


def waits(heard: list[Event] | None = None, **options: Any) -> wait_until_free._Wait:
    pool: Any = None
    told = [] if heard is None else heard
    return wait_until_free._Wait(pool, LaunchOptions(wait=60.0, **options), told.append)


def test_it_waits_for_runs_and_for_processes_on_the_gpus() -> None:
    assert waits().others(FINDINGS) == {"b": "m, up to 9 MiB by python of ada (pid 7)"}
    assert waits().others([finding(LOCK, "fail", "run r-1 of ada")]) == {"b": "run r-1 of ada"}
    assert waits().others([finding(LOCK, "pass", "")]) == {}


@pytest.mark.parametrize("options", [{"force": True}, {"check": False}])
def test_gpus_do_not_matter_if_they_would_stop_no_launch(options: dict[str, Any]) -> None:
    assert waits(**options).others(FINDINGS) == {}


def test_a_port_may_be_taken_for_a_moment_but_not_for_long() -> None:
    waiting, taken = waits(), [finding(PORT, "fail", "in use")]
    assert [waiting.port_taken(taken) for _ in range(MOST_PORTS + 1)] == [
        *[{"b": "m"}] * MOST_PORTS, {},
    ]  # fmt: skip


def test_news_are_told_once_and_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Event] = []
    waiting = waits(heard)
    looks = iter([{"b": "up to 8 MiB by x"}, {"b": "run r-2 (t.py) of ada"}, {}])
    monkeypatch.setattr(waiting, "look", lambda _: next(looks))
    monkeypatch.setattr(wait_until_free, "POLL_SECONDS", 0.0)
    nothing: Any = None
    waiting.until_free(nothing, {"b": "up to 9 MiB by x"})
    assert [one.nodes for one in heard if isinstance(one, Waiting)] == [
        {"b": "up to 9 MiB by x"}, {"b": "run r-2 (t.py) of ada"}, {},
    ]  # fmt: skip


def test_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = waits()
    waiting._began -= 61
    nothing: Any = None
    with pytest.raises(LaunchRefused, match="not free within 60 s:\nb: run r-1") as refused:
        waiting.until_free(nothing, {"b": "run r-1"})
    assert (refused.value.by, refused.value.exit_code) == ("busy", 125)


def test_to_wait_for_nodes_that_are_left_out_is_refused() -> None:
    with pytest.raises(UsageError, match="--exclude-unhealthy leaves them out"):
        LaunchOptions(wait=60.0, exclude_unhealthy=True)


@pytest.mark.parametrize(("by", "kept"), [("busy", False), ("start", True)])
def test_only_a_run_of_which_something_may_be_left_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by: str, kept: bool
) -> None:
    records = Records(tmp_path)

    def begin(*_: object, **__: object) -> None:
        records.write(RECORD)
        raise LaunchRefused("not started", by=by)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wait_until_free, "ready", lambda *_: None)
    monkeypatch.setattr(wait_until_free, "prepare", lambda *_, **__: (CLUSTER, PLAN, VERDICT))
    monkeypatch.setattr(wait_until_free, "begin", begin)
    monkeypatch.setattr(wait_until_free, "collect_facts", interrupted)
    with pytest.raises(LaunchRefused if kept else Interrupted):
        wait_until_free.launch_when_free(
            CLUSTER, cast("Any", None), records, LaunchOptions(wait=9.0), emit=ignore
        )
    assert bool(records.all(CLUSTER.name)) is kept
