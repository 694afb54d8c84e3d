"""A run on one node: whom it takes for its supervisor, and what it does for a dead one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node import run_lock
from clusterctl.node.run.files.run_paths import NO_PATHS, NodePaths
from clusterctl.node.run.operations.node_run import CLEARED_UP, LocalRun, held_lock
from clusterctl.node.run.operations.status import RecordedProcesses
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.boot import boot_id
from tests.node.conftest import Run


@pytest.mark.parametrize(
    ("uid", "run", "holds"),
    [
        (os.getuid(), "lab-1", True),
        (0, "lab-1", True),
        (os.getuid() + 4711, "lab-1", False),
        (os.getuid(), "lab-2", False),
    ],
)
def test_a_lock_that_another_user_holds_is_never_the_supervisors(
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    run: str,
    holds: bool,  # noqa: FBT001
) -> None:
    """Any user can take the name and say what our supervisor would."""
    node_run = LocalRun(NO_PATHS, "lab-1", "a", run_lock.NAME, {}, RecordedProcesses(NO_PATHS))
    answer = {"uid": uid, "pid": os.getpid(), "run": run, "node": "a"}
    asked: list[str] = []

    def query(_name: str, request: dict[str, str]) -> dict[str, object]:
        asked.append(request["ask"])
        return answer

    monkeypatch.setattr(run_lock, "query", query)
    assert node_run.holds_lock() is holds
    assert node_run.request_stop({}) is holds
    assert ("stop" in asked) is holds


def test_an_order_for_a_run_that_has_ended_does_not_reach_the_next(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock may change hands between the question who holds it and the order."""
    run = make_run("import time; print('here'); time.sleep(300)").start()
    run.wait_for_log(0, b"here")
    lock = run.plan.master.lock
    older = LocalRun(NO_PATHS, "lab-1", run.names[0], lock, {}, RecordedProcesses(NO_PATHS))
    own = {"run": run.plan.run, "node": run.names[0]}
    monkeypatch.setattr(LocalRun, "holds_lock", lambda _run: True)
    assert not older.request_stop({"grace": 0.0})
    for ask in ("stop", "state", "rank", "join"):
        for other in ({}, {**own, "run": "lab-1"}, {**own, "node": "another"}):
            answer = run_lock.query(lock, {"ask": ask, "grace": 0.0, **other}) or {}
            assert f"this is run {run.plan.run} on node {run.names[0]}" in answer["error"]
    assert run.status()["state"] == "running"
    assert older._replace(run=run.plan.run).request_stop({"grace": 0.0})
    assert run.ended()["state"] == "stopped"


@pytest.fixture
def node_run(tmp_path: Path) -> LocalRun:
    """A run whose supervisor is this very process."""
    paths = NodePaths(str(tmp_path))
    pid, start = processes.key_of(os.getpid())
    account = {"pid": pid, "start": start, "boot_id": boot_id()}
    Path(paths.supervisor).write_text(json.dumps(account))
    return LocalRun(paths, "lab-1", "a", run_lock.NAME, {}, RecordedProcesses(paths))


def test_a_holder_that_does_not_answer_is_the_supervisor_if_it_has_its_number(
    node_run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    for told, holds in (({"pid": pid}, True), ({"pid": pid + 1}, False), ({}, False)):
        who = {**told, "uid": os.getuid()}
        monkeypatch.setattr(run_lock, "query", lambda *_, who=who: who)
        assert node_run.holds_lock() is holds


def test_a_supervisor_that_is_slow_to_answer_is_given_its_time(
    node_run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"pid": os.getpid(), "uid": os.getuid()}
    answers = iter([slow, slow, slow, None])
    monkeypatch.setattr(run_lock, "query", lambda *_: next(answers))
    monkeypatch.setattr(LocalRun, "find_all", lambda _part: [])
    node_run.wait(time.monotonic() + 60)
    assert list(answers) == []


def test_nobody_waits_longer_than_is_asked_for(
    node_run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "query", lambda *_: {"pid": os.getpid(), "uid": os.getuid()})
    began = time.monotonic()
    node_run.wait(began + 0.2)
    assert time.monotonic() - began < 10


def test_the_end_that_a_dead_supervisor_did_not_write_is_written_once(node_run: LocalRun) -> None:
    Path(node_run.paths.supervisor).write_text('{"ranks": [{"rank": 0, "state": "running"}]}')
    node_run.write_missing_end("a test")
    assert not Path(node_run.paths.end).exists(), "nobody knows whose end it would be"
    known = node_run._replace(job={"run": "lab-1"})
    for reason in ("a test", "another"):
        known.write_missing_end(reason)
    end = json.loads(Path(node_run.paths.end).read_text())
    assert (end["state"], end["by"]) == ("stopped", "stop")
    assert end["reason"] == "a test; its supervisor had died"
    assert end["ranks"] == [{"rank": 0, "state": "ended"}]


@pytest.mark.parametrize("rebooted", [True, False])
def test_a_lost_part_that_is_cleared_up_keeps_why_and_when_it_was_lost(
    node_run: LocalRun, *, rebooted: bool
) -> None:
    boot = "another" if rebooted else boot_id()
    Path(node_run.paths.supervisor).write_text(json.dumps({"boot_id": boot}))
    Path(node_run.paths.heartbeat).touch()
    os.utime(node_run.paths.heartbeat, (5000.0, 5000.0))
    node_run._replace(job={"run": "lab-1"}).write_missing_end("stopped by ada", lost=True)
    end = json.loads(Path(node_run.paths.end).read_text())
    why = "the machine was rebooted" if rebooted else "its supervisor died"
    assert (end["state"], end["reason"]) == ("lost", why + CLEARED_UP)
    assert end["time"] == 5000.0 < end["over"]


GPU = "GPU-00000000-1111-2222-3333-444444444444"


def test_the_lock_of_a_run_whose_folder_is_gone_is_found_and_no_other_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [
        {"run": "lab-2", "node": "a", "holds": [GPU]},
        {"run": "lab-1", "node": "b", "holds": [GPU]},
        {"run": "lab-1", "node": "a", "holds": ["$(id)"]},
    ]
    ours = {"run": "lab-1", "node": "a", "holds": [GPU, "port-29500"]}
    for holders, found in (([*others, ours], f"{run_lock.NAME}/{GPU},port-29500"), (others, "")):
        monkeypatch.setattr(run_lock, "lock_holders", lambda _names, holders=holders: iter(holders))
        assert held_lock({"run": "lab-1", "node": "a"}) == found


def test_gone_is_what_two_looks_in_a_row_do_not_see(
    node_run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process within its exec shows no stamp for a moment."""
    own = processes.read(os.getpid())
    looks = iter([[own], [], [own], [], []])
    killed: list[object] = []
    monkeypatch.setattr(LocalRun, "find_all", lambda _part: next(looks))
    monkeypatch.setattr(
        "clusterctl.node.run.operations.node_run.send_all",
        lambda left, _number: killed.extend(left),
    )
    assert node_run.kill() == []
    assert list(looks) == []
    assert killed == [own, own]
