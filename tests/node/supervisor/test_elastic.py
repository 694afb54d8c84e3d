"""An elastic run of torchrun on three loopback nodes: it continues without a node that is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node.run.processes import processes
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

RANK = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one, world = torch.ones(1), dist.get_world_size()
while not os.path.exists("go" + str(world)):
    dist.all_reduce(one)
    one /= world
    if dist.get_rank() == 0:
        open("world" + str(world), "w").close()
    time.sleep(0.05)
dist.barrier()
"""
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"
JOB = Job(
    launcher="torchrun",
    launcher_args=("--nnodes=2:3", "--max-restarts=3", f"--rdzv-conf={QUICK}"),
    stop=Stop(grace=5),
)


def started(make_run: Callable[..., Run], **options: object) -> Run:
    run = make_run(RANK, nodes=3, launcher="torchrun", job=JOB, **options).start()
    wait_until((run.workdir / "world3").exists)
    return run


def joined(run: Run, nodes: int) -> set[int]:
    """Wait until the supervisors have seen a rank of each node join; return their pids."""
    ranks: list[Head] = []

    def all_have() -> bool:
        ranks[:] = [rank for n in range(nodes) for rank in run.status(n)["ranks"]]
        return sorted(rank["rank"] for rank in ranks if rank["joined"]) == list(range(nodes))

    wait_until(all_have)
    return {rank["pid"] for rank in ranks}


@pytest.mark.soak  # test_join.py loses one, without torch
def test_the_run_continues_without_a_node_whose_supervisor_is_lost(
    make_run: Callable[..., Run],
) -> None:
    run = started(make_run, lost_after=3.0)
    before = joined(run, 3)
    run.kill_supervisor_and_guard(2)
    wait_until((run.workdir / "world2").exists)
    wait_until(lambda: any(one["kind"] == "peer-left" for one in run.events(0)))
    assert not joined(run, 2) & before
    (run.workdir / "go2").touch()
    assert [run.ended(n)["state"] for n in range(2)] == ["finished", "finished"]
    assert not run.left()


@pytest.mark.soak  # test_ranks.py shows who is killed
def test_the_run_continues_without_a_node_that_closes_no_connection(
    make_run: Callable[..., Run],
) -> None:
    run = started(make_run, lost_after=3.0)
    before = joined(run, 3)
    table = processes.process_table()
    guard = run.pid_of_guard(2)
    frozen = [table[pid] for pid in (guard, *processes.descendants([guard], table))]
    processes.send_all(frozen, signal.SIGSTOP)
    wait_until((run.workdir / "world2").exists)
    assert not joined(run, 2) & before
    assert b"is lost: its peers here are killed" in Path(run.paths(0).launcher_log).read_bytes()
    (run.workdir / "go2").touch()
    assert [run.ended(n)["state"] for n in range(2)] == ["finished", "finished"]
    processes.send_all(frozen, signal.SIGKILL)
    wait_until(lambda: not run.left())


@pytest.mark.soak
def test_the_run_ends_with_too_few_nodes(make_run: Callable[..., Run]) -> None:
    run = started(make_run)
    for n in (1, 2):  # a worker whose launcher was killed reports its bad end
        (launcher,) = [
            one
            for one in processes.process_table().values()
            if one.parent == run.pid_of_supervisor(n)
        ]
        processes.send(launcher.key, 9)
        run.ended(n)
    master = run.ended(0)
    assert (master["end"]["state"], master["end"]["by"]) == ("failed", "peer")
    left = [one["peer"] for one in run.events(0) if one["kind"] == "peer-left"]
    assert left == [run.names[1]]
    assert not run.left()
