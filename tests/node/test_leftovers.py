"""What an older run left on a machine: no other run starts over it."""

from __future__ import annotations

from collections.abc import Callable

from .conftest import Run

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
print("here", flush=True)
time.sleep(300)
"""


def test_no_run_starts_over_processes_of_an_older_one(make_run: Callable[..., Run]) -> None:
    older = make_run(DAEMON).start()
    older.wait_for_log(0, b"here\nhere\n")
    older.kill_supervisor_and_guard()
    (left,) = older.left()
    run = make_run("pass")
    run.change = {"lock": older.plan.master.lock}
    error = run.start_node(0)["error"]
    assert error["kind"] == "busy"
    assert f"processes of run {older.plan.run} are left: pid {left.pid} (" in error["message"]
    assert error["hint"] == f"clusterctl stop {older.plan.run}"
    assert older.stop()["gone"]
    run.start()
    assert run.ended()["state"] == "finished"


def test_a_run_starts_right_after_another(make_run: Callable[..., Run]) -> None:
    older = make_run("pass").start()
    assert older.ended()["state"] == "finished"
    run = make_run("pass")
    run.change = {"lock": older.plan.master.lock}
    run.start()
    assert run.ended()["state"] == "finished"
