"""The ranks of a node: started again by a launcher, reported twice, of another run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.ranks.node_ranks import EXIT_CODE_SECONDS, Ranks
from clusterctl.node.supervisor.shutdown import Cause
from tests.waiting import wait_until


class World:
    """The ranks of a node under a launcher, without processes: the test reports deaths itself."""

    def __init__(self, folder: str = "/nowhere", *, procs: int = 1, decides: bool = True) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.later: list[Callable[[], None]] = []
        self.ends: list[tuple[object, ...]] = []
        record: Any = SimpleNamespace(
            event=lambda kind, **details: self.events.append((kind, details)),
            record_processes=lambda _marks: None,
            paths=NodePaths(folder),
            log_end=RunFiles(NodePaths(folder)).log_end,
        )
        loop: Any = SimpleNamespace(
            on_signal=lambda *_: None,
            add_descriptor=lambda *_: None,
            remove_descriptor=lambda *_: None,
            call_later=lambda _seconds, callback: self.later.append(callback),
        )
        job: Any = {
            "run": "r",
            "node": "n",
            "first_rank": 0,
            "procs": procs,
            "world_size": procs,
            "nnodes": 1,
            "launcher": "torchrun",
            "launcher_argv": ["x"],
            "launcher_decides": decides,
            "container": [],
        }
        self.ranks = Ranks(
            loop,
            job,
            SimpleNamespace(),  # type: ignore[arg-type]
            record,
            self,
        )
        launcher = processes.read(os.getpid())
        assert launcher
        self.ranks._launcher = (launcher.pid, launcher.start)

    def rank_failed(self, cause: Cause) -> None:
        self.ends.append((cause.by, cause.exit_code, cause.killed_by, cause.rank))

    def rank_ended(self) -> None:
        """Nothing waits for it."""

    def ranks_succeeded(self) -> None:
        self.ends.append(("success",))

    def report(self, rank: int = 0, **changes: object) -> dict[str, Any]:
        request = {"run": "r", "rank": rank, "local_rank": rank, "restarts": 0}
        return self.ranks.report({**request, **changes}, os.getpid())

    def end(self, rank: int, status: int | None, at: float = 0.0) -> None:
        self.ranks._rank_ended(self.ranks._ranks[rank], status)
        self.ranks._ranks[rank].ended = at

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


def test_a_rank_that_starts_again_has_not_ended_by_the_end_before() -> None:
    world = World()
    assert world.report() == {"watched": True}
    assert world.report() == {"watched": True}  # asked twice, started once
    world.end(0, None, at=7.0)
    world.report(restarts=1)
    for callback in world.later:
        callback()
    world.ranks.resolve_exit_codes()
    assert world.kinds() == ["rank-started", "rank-ended", "rank-started"]
    assert world.events[1][1]["time"] == 7.0


def test_no_rank_starts_while_the_run_ends() -> None:
    world = World()
    world.ranks.stopping = True
    assert world.report() == {"ending": True}
    assert world.events == []
    assert not world.ranks.all_started


def test_of_several_failures_the_first_is_blamed() -> None:
    """What came later is an echo, or torchrun ending the others."""
    world = World(procs=3)
    for rank in range(3):
        world.report(rank)
    world.end(0, None, at=30.0)
    world.end(2, 7 << 8, at=10.0)
    world.end(1, 9 << 8, at=20.0)
    world.ranks._launcher_ended(1 << 8)
    assert world.ends == [("rank", 7, None, 2)]


def test_a_launcher_that_fails_without_a_failed_rank_is_blamed_itself() -> None:
    world = World()
    world.ranks._launcher_ended(2 << 8)
    assert world.ends == [("launcher", 2, None, None)]


@pytest.mark.parametrize(
    ("seconds", "blamed"), [(0.2, ("launcher", 1, None, None)), (5.0, ("rank", 143, 15, 1))]
)
@pytest.mark.parametrize("decides", [True, False])
def test_a_rank_that_the_launcher_terminated_after_a_lost_end_is_not_blamed(
    seconds: float, blamed: tuple[object, ...], *, decides: bool
) -> None:
    world = World(procs=2, decides=decides)
    world.report(0)
    world.report(1)
    world.end(0, None, at=time.time() - seconds)
    world.end(1, signal.SIGTERM)
    world.ranks._ranks[1].ended = time.time()
    world.ranks._launcher_ended(1 << 8)
    assert world.ends[0] == blamed


def test_a_launcher_that_ends_well_vouches_for_its_ranks() -> None:
    """It saw how they ended, before us."""
    world = World(procs=2)
    for rank in (0, 1):
        world.report(rank)
        world.end(rank, None)
    assert "rank-ended" not in world.kinds()
    world.ranks._launcher_ended(0)
    ended = [details for kind, details in world.events if kind == "rank-ended"]
    assert [(each["rank"], each["exit_code"]) for each in ended] == [(0, 0), (1, 0)]
    assert world.ends == [("success",)]


def test_an_end_is_learned_from_the_launchers_log(tmp_path: Path) -> None:
    log = "failed (exitcode: -9) local_rank: 0 (pid: {}) of binary: python\n"
    (tmp_path / "launcher.log").write_text(log.format(os.getpid()))
    world = World(str(tmp_path), decides=False)
    world.report()
    world.end(0, None)
    assert world.ends == [("rank", 137, 9, 0)]


def test_each_end_that_nobody_knows_yet_is_looked_for_as_long_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    world = World(str(tmp_path), procs=2)
    for rank in (0, 1):
        world.report(rank)

    def live(seconds: float) -> None:
        clock.now += seconds
        due, world.later[:] = list(world.later), []
        for callback in due:
            callback()

    world.end(0, None)
    live(EXIT_CODE_SECONDS - 0.1)
    world.end(1, None)
    live(0.2)
    ended = [details["rank"] for kind, details in world.events if kind == "rank-ended"]
    assert ended == [0]
    log = "failed (exitcode: 3) local_rank: 1 (pid: {})\n"
    (tmp_path / "launcher.log").write_text(log.format(os.getpid()))
    live(0.1)
    (last,) = [details for kind, details in world.events if details.get("exit_code") is not None]
    assert (last["rank"], last["exit_code"]) == (1, 3)


def test_a_launcher_is_killed_once_it_is_known_how_all_its_ranks_ended() -> None:
    world = World(procs=2)
    launcher = subprocess.Popen(["sleep", "60"])
    world.ranks._launcher = processes.key_of(launcher.pid)
    for rank in (0, 1):
        world.report(rank)
    world.end(0, signal.SIGKILL)
    world.ranks.end_launcher()
    world.end(1, None)  # how, its log may tell soon
    world.ranks.end_launcher()
    assert launcher.poll() is None
    world.ranks.resolve_exit_codes()
    world.ranks.end_launcher()
    assert launcher.wait(10) == -signal.SIGKILL


def test_ranks_that_began_before_a_node_was_lost_are_killed_with_all_below_them() -> None:
    world = World(procs=2)
    script = ["sh", "-c", "sleep 60 & echo $!; wait"]
    old, new = (subprocess.Popen(script, stdout=subprocess.PIPE, text=True) for _ in range(2))
    with old, new:
        for number, each in enumerate((old, new)):
            world.ranks._ranks[number].has_started(processes.key_of(each.pid))
        world.ranks._ranks[0].began = 5.0
        helper = processes.key_of(int(old.stdout.readline()))  # type: ignore[union-attr]
        world.ranks.end_older(10.0, "node3")
        assert old.wait(10) == -signal.SIGKILL
        wait_until(lambda: not processes.alive(helper))
        assert new.poll() is None
        world.ranks.end_older(time.time() + 1, "node3")
        assert new.wait(10) == -signal.SIGKILL
