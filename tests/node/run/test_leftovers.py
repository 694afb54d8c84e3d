"""What an older run left on a machine: no other run starts over it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import leftovers, processes
from clusterctl.node.run.processes.boot import boot_id
from tests.node.conftest import Run
from tests.waiting import wait_until

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
os.write(1, b"here\\n")  # at once: with PYTHONUNBUFFERED `print` writes the end of a line by itself
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


def test_a_run_that_starts_at_the_same_moment_is_no_leftover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its processes are there some milliseconds before it has the lock."""
    seen = iter([None, None, {"run": "lab-20260102t000000-abcd", "uid": os.getuid(), "user": "u"}])
    monkeypatch.setattr(run_lock, "lock_holders", lambda _: filter(None, [next(seen)]))
    found = leftovers.Leftover("lab-20260102t000000-abcd", os.getpid())
    monkeypatch.setattr(leftovers, "find_leftover", lambda _: found)
    with pytest.raises(OperationError, match="the machine is busy: run lab-2026") as refused:
        leftovers.require_no_leftovers(cast("NodeJob", {"lock": "a", "run": "x"}))
    hint = str(refused.value.head()["error"]["hint"])
    assert "clusterctl status lab-20260102t000000-abcd shows it" in hint


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
    job: Any = {"lock": run.plan.master.lock, "run": run.plan.run, "cluster": "test"}
    job["state"] = str(run.folder / "state")
    variables = {"CLUSTERCTL_RUN_ID": "elsewhere", "CLUSTERCTL_LOCK": job["lock"]}
    for argv, counts in ((["sleep", "300"], True), (["unshare", "-n", "sleep", "300"], False)):
        with subprocess.Popen(argv, env={**os.environ, **variables}) as other:
            try:
                wait_until(partial(executed, other.pid))
                found = leftovers.Leftover("elsewhere", other.pid)
                assert leftovers.find_leftover(job) == (found if counts else None)
                if not counts:
                    run.start()
                    assert run.ended()["state"] == "finished"
            finally:
                other.kill()


def test_another_users_process_holds_no_run_up(tmp_path: Path) -> None:
    """Anyone can start a process with the environment of a run."""
    if os.getuid() != 0:
        pytest.skip("only root can start another user's process")
    job: Any = {"lock": "clusterctl-run", "run": "ours", "cluster": "test", "state": str(tmp_path)}
    variables = {"CLUSTERCTL_RUN_ID": "evil", "CLUSTERCTL_LOCK": job["lock"]}
    for user, counts in ((0, True), (65534, False)):
        with subprocess.Popen(
            ["sleep", "300"], env={**os.environ, **variables}, user=user
        ) as other:
            try:
                wait_until(partial(executed, other.pid))
                found = leftovers.Leftover("evil", other.pid)
                assert leftovers.find_leftover(job) == (found if counts else None)
            finally:
                other.kill()


@pytest.mark.parametrize("recorded", ["itself", "its parent", "another", "nothing"])
def test_a_process_that_became_another_user_is_known_by_the_runs_record(
    tmp_path: Path, recorded: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start another user's process")
    job: Any = {"lock": "clusterctl-run", "run": "ours", "cluster": "test", "state": str(tmp_path)}
    paths = NodePaths(str(tmp_path / "test" / "older" / "n0"))
    Path(paths.folder).mkdir(parents=True, mode=0o700)
    Path(paths.job).write_text(json.dumps({"boot_id": boot_id(), "run": "older"}))
    bare = {name: value for name, value in os.environ.items() if name != "CLUSTERCTL_RUN_ID"}
    child = "env CLUSTERCTL_RUN_ID=older CLUSTERCTL_LOCK=clusterctl-run setpriv --reuid=65534"
    script = f"{child} --clear-groups sleep 300 & echo $!; wait"
    argv = ["sh", "-c", script]
    with subprocess.Popen(argv, env=bare, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            wait_until(partial(executed, pid))
            key, above = processes.key_of(pid), processes.key_of(parent.pid)
            keys = {"itself": key, "its parent": above, "another": (pid, key[1] + 1)}
            if recorded in keys:
                Path(paths.processes).write_text("{} {}\n".format(*keys[recorded]))
            counts = recorded in {"itself", "its parent"}
            expected = leftovers.Leftover("older", pid) if counts else None
            assert leftovers.find_leftover(job) == expected
        finally:
            os.kill(pid, signal.SIGKILL)


def executed(pid: int) -> bool:
    return processes.command_of(pid) == "sleep 300"


def test_a_process_that_exited_meanwhile_is_no_leftover() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not leftovers.in_same_network_namespace(process.pid)
    assert leftovers.in_same_network_namespace(os.getpid())


@pytest.mark.parametrize(
    ("older", "counts"),
    [
        ({"run": "older", "lock": "clusterctl-run"}, True),
        ({"run": "ours", "lock": "clusterctl-run"}, False),
        ({"run": "older", "lock": "another-machine"}, False),
        ({"run": "older", "lock": "clusterctl-run", "boot_id": "earlier"}, False),
    ],
)
def test_a_stuck_process_is_known_by_its_number_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    older: dict[str, str],
    counts: bool,  # noqa: FBT001
) -> None:
    """To read the environment of a process in state D could hang us too."""
    paths = NodePaths(str(tmp_path / "test" / "older" / "n0"))
    Path(paths.folder).mkdir(parents=True, mode=0o700)
    Path(paths.job).write_text(json.dumps({"boot_id": boot_id(), **older}))
    with subprocess.Popen(["sleep", "300"]) as process:
        try:
            found = processes.read(process.pid)
            assert found is not None
            found.state = "D"
            monkeypatch.setattr(processes, "process_table", lambda: {process.pid: found})
            job: Any = {"state": str(tmp_path), "cluster": "test", "lock": "clusterctl-run"}
            job["run"] = "ours"
            Path(paths.processes).write_text("1 1\n")
            assert leftovers.find_leftover(job) is None
            Path(paths.processes).write_text("{} {}\n".format(*found.key))
            expected = leftovers.Leftover("older", process.pid) if counts else None
            assert leftovers.find_leftover(job) == expected
        finally:
            process.kill()
