"""A run goes on without a node that failed: with a spare in its place, or smaller."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.cluster import Job, Restart, Stop
from clusterctl.node import run_lock
from clusterctl.plan.join import RunningJob
from clusterctl.wire import plain
from tests.node.conftest import Run, save
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
Head = dict[str, Any]

TRAINS = """
import fcntl, os, sys, time
rank, node = int(os.environ["RANK"]), os.environ["CLUSTERCTL_NODE"]
held = os.open("lock-%d" % rank, os.O_CREAT | os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never two attempts alive at once
resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else "nothing"
names = ("WORLD_SIZE", "NODE_RANK", "NNODES", "GROUP_RANK")
print("begin", rank, "from", resumed, *(os.environ[name] for name in names), flush=True)
print(open(os.environ["CLUSTERCTL_HOSTFILE"]).read().replace("\\n", ";"), flush=True)
print("here", flush=True)
while not os.path.exists("go"):
    if os.path.exists("fail-" + node):
        os.unlink("fail-" + node)
        raise SystemExit("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    time.sleep(0.02)
print("done", rank)
"""


def of_spares(
    make_run: MakeRun,
    *,
    nodes: int,
    spares: int,
    least: int = 0,
    wait: float = 0.0,
    text: str = TRAINS,
    **options: Any,
) -> Run:
    """Make a run on so many nodes, spares included; checkpoints are in `ckpt`."""
    options.setdefault("lost_after", 6)
    job = Job(
        stop=Stop(grace=5),
        checkpoints="ckpt",
        resume_args=("--resume", "{checkpoint}"),
        restart=Restart(max=3, min_nodes=least, wait=wait),
    )
    return make_run(text, nodes=nodes, spares=spares, job=job, **options)


def printed(run: Run, n: int, rank: int) -> str:
    path = Path(run.paths(n).folder, f"ranks/{rank}.log")
    return path.read_text() if path.exists() else ""


def wait_for(run: Run, n: int, rank: int, times: int = 1) -> None:
    """Wait until a node runs a rank for this time."""
    wait_until(lambda: printed(run, n, rank).count("here") >= times)


def kinds(run: Run, n: int, kind: str) -> list[Head]:
    return [event for event in run.events(n) if event["kind"] == kind]


def lose(run: Run, n: int) -> float:
    """End all that is of the run on a node at once, as a power failure does."""
    status = run.status(n)
    pids = [rank["pid"] for rank in status["ranks"]]
    run.kill_supervisor_and_guard(n)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def test_a_spare_takes_the_place_of_a_lost_node(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=4, spares=1).start()
    for n in range(3):
        wait_for(run, n, n)
    spare = run.status(3)
    assert (spare["state"], spare["standby"], spare["ranks"]) == ("running", True, [])
    saved = save(run, 20)
    died = lose(run, 1)
    wait_for(run, 3, 1)
    took = time.monotonic() - died
    for n, rank in ((0, 0), (2, 2)):
        wait_for(run, n, rank, times=2)
    assert f"begin 1 from {saved} 3 1 3 1" in printed(run, 3, 1)
    assert printed(run, 0, 0).count("127.0.0.1 slots=1;127.0.0.4 slots=1;127.0.0.3 slots=1") == 1
    left = run.status(0)["left_out"]
    assert [(one["node"], one["attempt"], one["spare"]) for one in left] == [
        (run.names[1], 1, run.names[3])
    ]
    assert "lost" in left[0]["why"]
    assert run.status(3)["standby"] is False
    (run.workdir / "go").touch()
    ends = [run.ended(n) for n in (0, 2, 3)]
    assert [(end["state"], end["attempt"]) for end in ends] == [("finished", 2)] * 3
    # The node has had the time to find out by itself, and to end its ranks.
    (again,) = kinds(run, 0, "again")
    assert again["without"] == [run.names[1]]
    assert took > 6 + 4


def test_a_node_with_a_broken_gpu_ends_its_part_and_a_spare_goes_on(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    (run.workdir / f"fail-{run.names[1]}").touch()
    wait_for(run, 2, 1)
    end = run.ended(1)
    assert (end["state"], end["attempt"]) == ("failed", 1)
    assert "the run continues without this node" in end["end"]["no_restart"]
    assert run_lock.query(run.plan.nodes[1].lock, {"ask": "who"}) is None, "the node is free"
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 2)] == ["finished", "finished"]
    assert not run.left()


def test_without_a_spare_the_run_goes_on_smaller(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=0, least=2).start()
    for n in range(3):
        wait_for(run, n, n)
    saved = save(run, 20)
    lose(run, 1)
    wait_for(run, 2, 1)
    wait_for(run, 0, 0, times=2)
    assert f"begin 1 from {saved} 2 1 2 1" in printed(run, 2, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 2)] == ["finished", "finished"]


def test_with_too_few_nodes_left_the_run_ends_and_names_the_way_on(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    (run.workdir / f"fail-{run.names[1]}").touch()
    wait_for(run, 2, 1)
    save(run, 40)
    (run.workdir / f"fail-{run.names[2]}").touch()
    end = run.ended(0)
    assert (end["state"], end["attempt"]) == ("failed", 2)
    assert f"no spare node is left for {run.names[2]}" in end["end"]["no_restart"]
    assert end["end"]["no_restart"].endswith(f"--exclude {run.names[1]},{run.names[2]}")
    assert not run.left()


@pytest.mark.parametrize("how", ["killed", "guard", "lost"])
def test_a_spare_that_dies_ends_nothing_and_takes_no_place(make_run: MakeRun, how: str) -> None:
    run = of_spares(make_run, nodes=4, spares=2).start()
    for n in range(2):
        wait_for(run, n, n)
    if how == "killed":
        os.kill(run.pid_of_supervisor(2), signal.SIGKILL)
        wait_until(lambda: bool(kinds(run, 0, "peer-left")))
    elif how == "lost":
        lose(run, 2)
        wait_until(lambda: bool(kinds(run, 0, "peer-left")))
    else:
        os.kill(run.pid_of_guard(2), signal.SIGKILL)
    save(run, 20)
    (run.workdir / f"fail-{run.names[1]}").touch()
    wait_for(run, 3, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 3)] == ["finished", "finished"]


def test_a_spare_stands_by_through_a_restart_on_the_same_nodes(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    os.kill(run.status(1)["ranks"][0]["pid"], signal.SIGKILL)
    for n in range(2):
        wait_for(run, n, n, times=2)
    wait_until(lambda: run.status(2)["attempt"] == 2 and run.status(2)["state"] == "running")
    assert run.status(2)["standby"] is True
    (run.workdir / "go").touch()
    ends = [run.ended(n) for n in range(3)]
    assert [end["state"] for end in ends] == ["finished"] * 3
    assert ends[2]["end"]["by"] == "master"
    assert not run.left()


@pytest.mark.parametrize("asked", [0, 2])
def test_stop_ends_spares_too(make_run: MakeRun, asked: int) -> None:
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    run.stop(asked, grace=1)
    assert [run.ended(n)["state"] for n in range(3)] == ["stopped"] * 3
    assert not run.left()


def test_a_lost_master_ends_the_run_on_the_spare_too(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    lose(run, 0)
    for n in (1, 2):
        end = run.ended(n)
        assert (end["state"], end["end"]["by"]) == ("lost", "lost")
        assert end["end"]["no_restart"] == f"{run.names[0]}, whose supervisor decides, is lost"


def test_a_node_that_is_cut_off_ends_its_ranks_before_the_spare_begins(make_run: MakeRun) -> None:
    """A supervisor that is frozen longer than that ends its ranks as soon as it runs again."""
    run = of_spares(make_run, nodes=3, spares=1).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    supervisor = run.pid_of_supervisor(1)
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: bool(kinds(run, 0, "again")))
    os.kill(supervisor, signal.SIGCONT)
    wait_for(run, 2, 1)
    end = run.ended(1)
    assert end["attempt"] == 1
    assert end["state"] != "finished"
    assert printed(run, 1, 1).count("begin") == 1, "it never starts again"
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 2)] == ["finished", "finished"]
    assert not run.left()


@pytest.mark.soak
def test_a_node_that_was_repaired_joins_the_run_that_waits_for_it(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=2, spares=0, wait=60, lost_after=2).start()
    for n in range(2):
        wait_for(run, n, n)
    saved = save(run, 20)
    (run.workdir / f"fail-{run.names[1]}").touch()
    assert "continues without this node" in run.ended(1)["end"]["no_restart"], "its machine is free"
    asks = {**run.where(0), "joins": run.names[1], "asks": True}
    wait_until(lambda: "error" not in run.call(0, "join", asks)[-1].head)
    assert "error" not in join(run, 1)
    wait_for(run, 1, 1, times=2)
    assert f"begin 1 from {saved} 2 1 2 1" in printed(run, 1, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in range(2)] == ["finished", "finished"]
    assert not run.left()


@pytest.mark.soak
def test_a_node_that_was_rebooted_joins_the_run_that_waits_for_it(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=2, spares=0, wait=60, lost_after=2).start()
    for n in range(2):
        wait_for(run, n, n)
    saved = save(run, 20)
    lose(run, 1)
    wait_until(lambda: bool(kinds(run, 0, "waits")))
    waits = run.status(0)["waits"]
    assert f"no spare node is left for {run.names[1]}" in waits["why"]
    assert waits["until"] - waits["since"] == pytest.approx(60)
    assert "error" not in join(run, 1)
    wait_for(run, 1, 1, times=2)
    assert f"begin 1 from {saved} 2 1 2 1" in printed(run, 1, 1)
    assert (run.status(0)["waits"], run.status(0)["left_out"]) == (None, [])
    status = run.status(1)
    assert (status["attempt"], status["standby"], status["rank0"]) == (2, False, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in range(2)] == ["finished", "finished"]
    assert not run.left()


def join(run: Run, n: int) -> Head:
    """Start a node's part as `clusterctl join` does, with the plan of the launch."""
    message = run.call(0, "join", {**run.where(0), "joins": run.names[n]})[-1]
    assert "error" not in message.head, message.head
    running = RunningJob.read(message.head["job"], plain(run.plan), run.job, {})
    run.change = dict(
        running.node_job(
            run.plan.node(run.names[n]),
            state=run.cluster.nodes[n].state,
            nodes=message.head["nodes"],
            link_port=message.head["link_port"],
            world_size=0,
        )
    )
    return run.start_node(n)


MEETS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
"""


@pytest.mark.soak
@pytest.mark.torch
def test_torchrun_meets_in_the_new_world(make_run: MakeRun) -> None:
    text = TRAINS.replace('print("here"', MEETS + 'print("here"')
    run = of_spares(
        make_run, text=text, nodes=3, spares=1, launcher="torchrun", lost_after=4
    ).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    lose(run, 1)
    wait_for(run, 2, 1)
    assert "sum 2.0" in printed(run, 2, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 2)] == ["finished", "finished"]
