"""Two nodes that join a waiting run at once, a wait in vain, and a machine that was frozen."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from clusterctl.node.run.processes.processes import descendants, process_table
from tests.node.conftest import save
from tests.node.supervisor.test_spares import (
    TRAINS,
    MakeRun,
    join,
    kinds,
    lose,
    of_spares,
    printed,
    wait_for,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.soak  # test_next_attempt.py decides the same without processes


def test_two_nodes_that_join_at_once_both_get_a_place(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=3, spares=0, wait=60, lost_after=2).start()
    for n in range(3):
        wait_for(run, n, n)
    saved = save(run, 20)
    lose(run, 1)
    lose(run, 2)
    wait_until(lambda: bool(kinds(run, 0, "waits")))
    joins = [threading.Thread(target=join, args=(run, n)) for n in (1, 2)]
    for one in joins:
        one.start()
    for one in joins:
        one.join()
    for n in (1, 2):
        wait_for(run, n, n, times=2)
    assert f"begin 1 from {saved} 3 1 3 1" in printed(run, 1, 1)
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in range(3)] == ["finished"] * 3


def test_a_run_for_which_no_node_comes_ends_when_its_wait_does(make_run: MakeRun) -> None:
    run = of_spares(make_run, nodes=2, spares=0, wait=6, lost_after=2).start()
    for n in range(2):
        wait_for(run, n, n)
    save(run, 20)
    lose(run, 1)
    wait_until(lambda: bool(kinds(run, 0, "waits")))
    end = run.ended(0)["end"]
    assert "no node joined in time" in end["no_restart"]
    assert f"--exclude {run.names[1]}" in end["no_restart"]
    (waits,) = kinds(run, 0, "waits")
    assert time.time() - waits["since"] >= 5
    assert not run.left()


def test_a_machine_that_was_frozen_ends_its_ranks_as_it_wakes_up(make_run: MakeRun) -> None:
    text = TRAINS.replace("fcntl.flock(held", "0 and fcntl.flock(held")  # its rank is still there
    run = of_spares(make_run, text=text, nodes=3, spares=1, lost_after=3).start()
    for n in range(2):
        wait_for(run, n, n)
    saved = save(run, 20)
    (rank,) = run.status(1)["ranks"]
    guard, table = run.pid_of_guard(1), process_table()
    frozen = [guard, *descendants([guard], table)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    wait_for(run, 2, 1)
    assert f"begin 1 from {saved} 2 1 2 1" in printed(run, 2, 1)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: rank["pid"] not in process_table())
    assert run.ended(1)["end"]["state"] == "lost"
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (0, 2)] == ["finished", "finished"]
    assert len(kinds(run, 1, "supervisor-up")) == 1
