"""Supervisors name a hang by themselves, keep the stacks, and take it back after a sign of life."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.inventory.cluster import Hang, Job, Stop
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.watch import hang_watch
from clusterctl.node.supervisor.watch.hang_watch import HangWatch
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

STANDS_STILL = """
import os, time
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.2)
print("again", flush=True)
time.sleep(600)
"""


def job(after: float, action: str = "report") -> Job:
    return Job(stop=Stop(grace=5), hang=Hang(after=after, action=action))


def of_kind(run: Run, n: int, kind: str) -> list[Head]:
    return [event for event in run.events(n) if event["kind"] == kind]


def test_a_run_that_stands_still_is_hung_on_every_node_until_it_shows_life(
    make_run: MakeRun,
) -> None:
    run = make_run(STANDS_STILL, nodes=2, procs=2, job=job(3.0)).start()
    wait_until(lambda: all(of_kind(run, n, "hung") for n in (0, 1)))
    for n in (0, 1):
        hung = of_kind(run, n, "hung")[0]
        assert hung["quiet_s"] >= 3.0
        assert run.status(n)["state"] == "running"  # an earlier controller knows no other word
        assert run.status(n)["hung"]["since"] == hung["since"]
        kept = Path(run.paths(n).hang, "1.json")
        wait_until(kept.exists)
        dump: dict[str, Any] = json.loads(kept.read_text())
        assert [rank["rank"] for rank in dump["ranks"]] == [2 * n, 2 * n + 1]
        assert all(rank["quiet_s"] >= 1.0 for rank in dump["ranks"])
        assert kept.stat().st_mode & 0o777 == 0o600
    (run.workdir / "go").touch()
    wait_until(lambda: all(of_kind(run, n, "running-again") for n in (0, 1)))
    for n in (0, 1):
        assert (run.status(n)["hung"], run.status(n)["false_alarms"]) == (None, 1)
    run.stop()
    assert run.ended()["false_alarms"] == 1


def test_a_run_that_is_hung_ends_if_the_job_says_so(make_run: MakeRun) -> None:
    run = make_run(STANDS_STILL, nodes=2, job=job(3.0, "stop")).start()
    ends = [run.ended(n)["end"] for n in (0, 1)]
    assert [(end["state"], end["by"]) for end in ends] == [("failed", "hang"), ("failed", "peer")]
    assert "no rank has shown a sign of life for" in ends[0]["reason"]
    assert ends[0]["reason"] in ends[1]["reason"]
    assert not run.left()
    assert all(Path(run.paths(n).hang, "1.json").exists() for n in (0, 1))


IN_STEP = """
import os, signal, socket, threading, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
def serve(server):
    ranks = [server.accept()[0] for _ in range(size)]
    while all(one.recv(1) for one in ranks):
        for one in ranks:
            one.sendall(b"x")
if rank == 0:
    threading.Thread(target=serve, args=[socket.create_server(address)], daemon=True).start()
while True:
    try:
        others = socket.create_connection(address)
        break
    except OSError:
        time.sleep(0.1)
print("here", flush=True)
while True:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    if rank == 2:
        own = os.getpid()
        helper = os.fork()
        if helper == 0:
            os.kill(own, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(own, signal.SIGCONT)
            os._exit(0)
        os.waitpid(helper, 0)
    others.sendall(b"x")
    others.recv(1)
    print("step", flush=True)
"""


def test_a_rank_that_keeps_the_others_waiting_is_named_with_its_reason(make_run: MakeRun) -> None:
    run = make_run(IN_STEP, nodes=3, job=job(10.0)).start()
    wait_until(lambda: of_kind(run, 2, "straggler"), 400)
    (event,) = of_kind(run, 2, "straggler")
    (told,) = run.status(2)["stragglers"]
    assert {name: event[name] for name in told} == told
    assert (told["rank"], 25 <= told["lost_percent"] <= 100) == (2, True)
    assert "a signal or a debugger has it stopped" in told["reason"]
    assert not any(of_kind(run, n, "straggler") or run.status(n)["stragglers"] for n in (0, 1))
    run.stop()
    assert run.ended(2)["stragglers"] == []


class Record:
    """A run's folder, in memory."""

    def __init__(self, folder: Path) -> None:
        self.paths = NodePaths(str(folder))
        self.events: list[tuple[str, object]] = []

    def event(self, kind: str, **details: object) -> None:
        self.events.append((kind, details.get("alarm")))

    def begins_at(self, _log: str) -> int:
        return 0


def watch(tmp_path: Path, ranks: list[Head], **job: object) -> tuple[HangWatch, Record]:
    record = Record(tmp_path)
    own = {"hang": {"after": 300.0, "action": "report"}, "launcher": "direct", "device": "cpu"}
    node_job: Any = {**own, **job}
    return HangWatch(EventLoop(), node_job, record, lambda: ranks, lambda: None), record  # type: ignore[arg-type]


RUNNING = {"rank": 0, "pid": os.getpid(), "state": "running", "joined": True}


@pytest.mark.parametrize(
    "job",
    [
        {"hang": {"after": 0.0, "action": "report"}},
        {"hang": None},  # of an earlier controller
        {"launcher": "ray"},
        {"container": ["docker", "run"]},
    ],
)
def test_a_node_that_may_not_or_cannot_watch_says_so(tmp_path: Path, job: Head) -> None:
    hang, _ = watch(tmp_path, [RUNNING], **job)
    hang.scan(processes.living_descendants())
    assert hang.tell(unseen=False) == {"quiet": None, "printed": False}
    assert hang.judge({"a": {"quiet": 1e9, "printed": True}}) is None


def test_a_node_tells_how_quiet_its_liveliest_rank_is(tmp_path: Path) -> None:
    ranks = [dict(RUNNING)]
    hang, _ = watch(tmp_path, ranks)
    begun = {"quiet": 0.0, "printed": False, "work": []}
    assert hang.tell(unseen=False) == begun
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.log").write_text("here")
    hang.scan([])  # a process that is hidden: nothing tells what it does
    assert hang.tell(unseen=False) == begun
    hang, _ = watch(tmp_path, ranks)
    own = processes.read(os.getpid())
    assert own
    hang.scan([own])
    told = hang.tell(unseen=False)
    assert (0.0 <= told["quiet"] < 60, told["printed"]) == (True, True)
    assert told["work"] == [[0, 0.0, 0.0, 0.0, 0, 0]]
    assert hang.tell(unseen=True) == {"quiet": None, "printed": False}
    ranks[0]["state"] = "ended"
    assert hang.tell(unseen=False) == {"printed": True}
    ranks[0]["state"] = "starting"
    assert hang.tell(unseen=False) == {"quiet": 0.0, "printed": False}


def test_while_no_sample_can_be_taken_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang, _ = watch(tmp_path, [dict(RUNNING)])
    own = processes.read(os.getpid())
    assert own
    hang.scan([own])
    later = time.monotonic() + 300.0
    monkeypatch.setattr(hang_watch, "time", SimpleNamespace(monotonic=lambda: later))
    assert hang.tell(unseen=False)["quiet"] is None


def test_a_dump_that_was_not_kept_is_an_event(tmp_path: Path) -> None:
    hang, record = watch(tmp_path, [])
    hang._kept({"saved": "1.json"})
    assert record.events == []
    hang._kept({})
    assert [kind for kind, _ in record.events] == ["dump-failed"]


def test_a_rank_that_ends_is_a_sign_of_life_for_those_that_waited_for_it(tmp_path: Path) -> None:
    pids = os.getpid(), os.getppid()
    ranks = [{**RUNNING, "rank": rank, "pid": pid} for rank, pid in enumerate(pids)]
    hang, _ = watch(tmp_path, ranks)
    hang.scan([one for one in map(processes.read, pids) if one])
    for one in hang._ranks.values():
        one.life._alive -= 1000.0
    assert hang.tell(unseen=False)["quiet"] >= 1000.0
    ranks[1]["state"] = "ended"
    assert hang.tell(unseen=False)["quiet"] < 60


def test_a_judgement_counts_once_however_often_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "run_apart", lambda *_, **__: None)
    hang, record = watch(tmp_path, [])
    told = {"hung": True, "quiet_s": 300.0, "alarm": 1}
    again = {**told, "hung": False}
    taken = [hang.take(one) for one in (again, told, told, again, again, told)]
    assert taken == [False, True, False, True, False, False]
    assert record.events == [("hung", 1), ("running-again", 1)]
    assert hang.take({**told, "alarm": 2})
    assert hang.account["false_alarms"] == 1
    hang.finished()  # before the master judged again
    hang.finished()
    assert hang.account == {**hang.account, "false_alarms": 2, "hung": None}


def test_stacks_of_when_all_stood_still_tell_more_than_those_of_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(hang_watch, "run_apart", lambda *_, **__: taken.append("dump"))
    hang, _ = watch(tmp_path, [])
    hang.timed_out()
    assert (taken, hang.stacks_kept) == (["dump"], False), "nothing is kept so far"
    hang._kept({"saved": "1.json"}, timed_out=True)
    assert hang.stacks_kept
    hang, _ = watch(tmp_path, [])
    hang.take({"hung": True, "quiet_s": 300.0, "alarm": 1})
    hang.timed_out()
    assert (taken, hang.stacks_kept) == (["dump"] * 2, True)


def test_a_master_that_calls_the_run_hung_without_end_starts_no_process_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(hang_watch, "run_apart", lambda *_, **__: taken.append("dump"))
    hang, record = watch(tmp_path, [])
    for alarm in range(1, 5000):
        hang.take({"hung": True, "quiet_s": 300.0, "alarm": alarm})
    assert (len(taken), len(record.events)) == (1, hang_watch.MOST_ALARMS)


def test_what_an_earlier_version_tells_leaves_the_run_unjudged(tmp_path: Path) -> None:
    hang, _ = watch(tmp_path, [])
    quiet = {"quiet": 1e9, "printed": True}
    assert hang.judge({"a": quiet, "b": None}) is None
    assert hang.judge({"a": {**quiet, "quiet": 0.0}, "b": quiet}) is None
    assert hang.judge({"a": quiet, "b": {"printed": False}}) is None  # since its first output


def results_of(work: Callable[[], Head], seconds: float = 60.0) -> list[Head]:
    loop, found = EventLoop(), list[Head]()
    run_apart(loop, work, found.append, seconds=seconds)
    while not found:
        loop.run_once()
    processes.reap_all()
    return found


def sleep() -> Head:
    time.sleep(600)
    return {}


def test_a_child_that_fails_or_is_late_tells_nothing_and_stops_nobody() -> None:
    assert results_of(lambda: {"pid": os.getppid()}) == [{"pid": os.getpid()}]
    assert results_of(lambda: {"fails": Path("/none").stat()}) == [{}]
    assert results_of(sleep, seconds=0.3) == [{}]


def test_a_child_holds_nothing_of_the_supervisors() -> None:
    def held() -> Head:
        return {"open": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())}

    with Path(os.devnull).open() as file:
        assert file.fileno() > 2
        (found,) = results_of(held)
    assert set(found["open"]) <= {0, 1, 2, 3, 4}  # the result's pipe, and this look
