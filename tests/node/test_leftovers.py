"""What an older run left on a machine: no other run starts over it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from clusterctl.node import leftovers, processes

from .conftest import Run, wait_until

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


def test_processes_of_another_network_namespace_hold_no_run_up(
    make_run: Callable[..., Run],
) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("no network namespace can be made here")
    run = make_run("pass")
    job = {"lock": run.plan.master.lock, "run": run.plan.run, "cluster": "test"}
    job["state"] = str(run.folder / "state")
    stamps = {"CLUSTERCTL_RUN_ID": "elsewhere", "CLUSTERCTL_LOCK": job["lock"]}
    for argv, counts in ((["sleep", "300"], True), (["unshare", "-n", "sleep", "300"], False)):
        with subprocess.Popen(argv, env={**os.environ, **stamps}) as other:
            try:
                wait_until(partial(executed, other.pid))
                found = leftovers.Leftover("elsewhere", other.pid)
                assert leftovers.find(job) == (found if counts else None)
                if not counts:
                    run.start()
                    assert run.ended()["state"] == "finished"
            finally:
                other.kill()


def executed(pid: int) -> bool:
    return processes.command_of(pid) == "sleep 300"
