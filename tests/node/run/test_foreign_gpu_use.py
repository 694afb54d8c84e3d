"""Which holders of GPU memory may be of a run that bears no mark of it: by when they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import foreign_gpu_use, processes
from clusterctl.node.run.processes.boot import boot_id, uptime
from clusterctl.node.run.processes.processes import ENV_RUN_ID
from tests.waiting import wait_until


@pytest.fixture
def holder() -> Iterator[processes.Process]:
    """A process of ours that no run started."""
    with subprocess.Popen(["sleep", "300"]) as started:
        wait_until(lambda: processes.command_of(started.pid) == "sleep 300")
        found = processes.read(started.pid)
        assert found is not None
        yield found
        started.kill()


def folder(tmp_path: Path, began: int, *, ended: float | None = None, boot: str = "") -> NodePaths:
    """Return the folder of a run whose supervisor started at that tick, and ended perhaps."""
    paths = NodePaths(str(tmp_path))
    account = {"pid": 1, "start": began + 50, "guard": [1, began], "boot_id": boot or boot_id()}
    Path(paths.supervisor).write_text(json.dumps(account))
    if ended is not None:
        Path(paths.end).write_text(json.dumps({"time": ended}))
    return paths


def test_only_what_started_while_the_run_lived_may_be_of_it(
    tmp_path: Path, holder: processes.Process
) -> None:
    held = {holder.pid: "9 MiB of GPU 0"}
    began = time.time() - uptime() + holder.start / os.sysconf("SC_CLK_TCK")
    for start, ended, named in (
        (holder.start - 100, None, True),
        (holder.start, None, True),
        (holder.start + 1, None, False),
        (holder.start - 100, began + 60, True),
        (holder.start - 100, began - 60, False),
    ):
        (tmp_path / "end.json").unlink(missing_ok=True)
        found = foreign_gpu_use.foreign_holders(folder(tmp_path, start, ended=ended), held)
        assert [each["pid"] for each in found] == ([holder.pid] if named else [])
        assert all(each["cmd"] == "sleep 300" for each in found)
        assert all("holds 9 MiB of GPU 0" in each["why"] for each in found)


def test_pids_of_another_boot_and_of_the_dead_say_nothing(
    tmp_path: Path, holder: processes.Process
) -> None:
    held = {holder.pid: "memory"}
    assert foreign_gpu_use.foreign_holders(NodePaths(str(tmp_path / "nothing")), held) == []
    assert foreign_gpu_use.foreign_holders(folder(tmp_path, 0, boot="earlier"), held) == []
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert foreign_gpu_use.foreign_holders(folder(tmp_path, 0), {gone.pid: "memory"}) == []


def test_a_process_of_another_run_is_known_by_its_mark(holder: processes.Process) -> None:
    assert foreign_gpu_use.may_be_of_run(holder)
    marked = {**os.environ, ENV_RUN_ID.decode(): "lab-2"}
    with subprocess.Popen(["sleep", "300"], env=marked) as started:
        wait_until(lambda: processes.command_of(started.pid) == "sleep 300")
        other = processes.read(started.pid)
        assert other is not None
        assert not foreign_gpu_use.may_be_of_run(other)
        other.state = "D"
        assert foreign_gpu_use.may_be_of_run(other), "its mark cannot be read"
        started.kill()


def test_a_process_of_this_pid_namespace_is_in_no_container() -> None:
    assert not foreign_gpu_use.in_container(os.getpid())
    assert not foreign_gpu_use.in_container(2**22 + 1)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process can only be started by root")
def test_of_another_user_only_a_container_may_be_of_the_run() -> None:
    container = ["unshare", "--pid", "--fork", "setpriv", "--reuid=65534", "sleep", "300"]
    for argv, may_be in ((container[3:], False), (container, True)):
        with subprocess.Popen(argv, start_new_session=True) as started:
            try:
                wait_until(partial(sleeps_below, started.pid))
                below = processes.descendants([started.pid], processes.process_table())
                process = processes.read(max(below, default=started.pid))
                assert process is not None
                assert foreign_gpu_use.may_be_of_run(process) is may_be
            finally:
                os.killpg(started.pid, signal.SIGKILL)


def sleeps_below(pid: int) -> bool:
    below = processes.descendants([pid], processes.process_table())
    return processes.command_of(max(below, default=pid)) == "sleep 300"
