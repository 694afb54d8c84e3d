"""What a node sees of its own state: processes that were left, limits, the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent import main
from clusterctl.node.probe import machine_state
from clusterctl.node.probe.machine_state import describe_machine, read_cgroups, scan_processes

RANK = {"RANK": "3", "WORLD_SIZE": "8", "CLUSTERCTL_RUN_ID": "lab-7"}
FORKS = """
import os, sys, time
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
time.sleep(1000)
"""


@pytest.fixture
def orphan() -> Iterator[int]:
    """Start a rank, and let what started it exit."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS],
        env={**os.environ, **RANK},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
    yield pid
    os.kill(pid, signal.SIGKILL)


def fake(folder: Path, pid: int, *, parent: int, state: str = "S", **files: bytes) -> None:
    """Write what /proc has of a process, which started with the machine."""
    own = folder / str(pid)
    (own / "fd").mkdir(parents=True)
    fields = [state, str(parent), *["0"] * 50]
    (own / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    for name, content in files.items():
        (own / name).write_bytes(content)


def pids(seen: dict[str, Any], kind: str) -> list[int]:
    return [one["pid"] for one in seen[kind]]


def test_a_rank_whose_launcher_has_exited_is_seen(orphan: int) -> None:
    parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
    if parent != 1:
        pytest.skip("another process than pid 1 adopts orphans here")
    (rank,) = [one for one in scan_processes()["ranks"] if one["pid"] == orphan]
    assert (rank["rank"], rank["run"]) == ("3", "lab-7")
    assert rank["command"].startswith(sys.executable)
    assert 0 <= rank["age_s"] < 60


def test_only_ranks_without_a_launcher_and_without_a_gpu_are_left_over(tmp_path: Path) -> None:
    environ = b"HOME=/x\0RANK=0\0WORLD_SIZE=2\0"
    fake(tmp_path, 1, parent=0, cmdline=b"/sbin/init\0")
    fake(tmp_path, 10, parent=1, environ=b"HOME=/x\0")
    fake(tmp_path, 11, parent=10, environ=environ)
    fake(tmp_path, 12, parent=1, environ=environ)
    fake(tmp_path, 13, parent=1, environ=environ)
    fake(tmp_path, 14, parent=1, state="Z", environ=environ)
    fake(tmp_path, 2, parent=0, comm=b"kthreadd\n")
    fake(tmp_path, 15, parent=2, environ=environ)
    (tmp_path / "13" / "fd" / "7").symlink_to("/dev/nvidia0")
    assert pids(scan_processes(str(tmp_path)), "ranks") == [12]


def test_ranks_of_mpi_and_daemons_of_ray_are_left_over(tmp_path: Path) -> None:
    fake(tmp_path, 10, parent=1, environ=b"OMPI_COMM_WORLD_RANK=2\0OMPI_COMM_WORLD_SIZE=4\0")
    fake(tmp_path, 11, parent=1, environ=b"PMI_RANK=1\0PMI_SIZE=4\0")
    fake(tmp_path, 12, parent=1, environ=b"SLURM_PROCID=0\0SLURM_NTASKS=1\0")  # such as tmux
    fake(tmp_path, 13, parent=1, environ=b"HOME=/x\0")
    stat = tmp_path / "13" / "stat"
    stat.write_text("13 (raylet)" + stat.read_text().rpartition(")")[2])
    found = scan_processes(str(tmp_path))["ranks"]
    assert {(one["pid"], one["rank"]) for one in found} == {(10, "2"), (11, "1"), (13, "")}
    assert next(one for one in found if one["pid"] == 13)["command"] == "raylet"


def test_kernel_threads_are_those_below_their_parent() -> None:
    threads = machine_state._kernel_threads("/proc")
    if not threads:
        pytest.skip("this kernel does not list children, or its threads are not seen here")
    for pid in threads:
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            assert stat.read_text().rpartition(")")[2].split()[1] == "2"


def test_what_the_kernel_lists_as_its_threads_is_not_read(tmp_path: Path) -> None:
    for pid in range(10, 15):
        fake(tmp_path, pid, parent=1, environ=b"RANK=0\0WORLD_SIZE=2\0")
    listed = tmp_path / "2" / "task" / "2"
    listed.mkdir(parents=True)
    (listed / "children").write_text("10 12 13 14 ")
    (tmp_path / "2" / "comm").write_text("kthreadd\n")
    assert pids(scan_processes(str(tmp_path)), "ranks") == [11]


def test_in_a_container_any_process_may_have_the_number_of_the_kernels(tmp_path: Path) -> None:
    fake(tmp_path, 1, parent=0, cmdline=b"/sbin/init\0")
    fake(tmp_path, 2, parent=1, comm=b"python\n", environ=b"RANK=0\0WORLD_SIZE=2\0")
    listed = tmp_path / "2" / "task" / "2"
    listed.mkdir(parents=True)
    (listed / "children").write_text("2 ")
    assert pids(scan_processes(str(tmp_path)), "ranks") == [2]


def test_a_container_that_torchrun_started_has_ranks_below_pid_1(tmp_path: Path) -> None:
    fake(tmp_path, 1, parent=0, cmdline=b"python\0/usr/bin/torchrun\0train.py\0")
    fake(tmp_path, 12, parent=1, environ=b"RANK=0\0WORLD_SIZE=2\0")
    assert pids(scan_processes(str(tmp_path)), "ranks") == []


def test_a_process_that_is_never_scheduled_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = b"State:\tD (disk sleep)\nvoluntary_ctxt_switches:\t5\n"
    for pid in (20, 21, 22):
        fake(tmp_path, pid, parent=1, state="D", status=waits, wchan=b"rpc_wait_bit_killable")
    fake(tmp_path, 23, parent=os.getppid(), state="D", status=waits)

    def meanwhile(_seconds: float) -> None:
        (tmp_path / "21" / "status").write_bytes(waits.replace(b"5", b"6"))
        (tmp_path / "22" / "status").write_bytes(b"State:\tS (sleeping)\n")

    monkeypatch.setattr(time, "sleep", meanwhile)
    (stuck,) = scan_processes(str(tmp_path))["stuck"]
    assert (stuck["pid"], stuck["waits_in"]) == (20, "rpc_wait_bit_killable")


@pytest.mark.parametrize("above", ["", "/.."], ids=["plain", "namespace-of-another-group"])
def test_the_limits_of_every_group_around_the_session_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    line = f"0::{above}/user.slice/session-3.scope\n".encode()
    slice_ = tmp_path / "user.slice" / "session-3.scope"
    slice_.mkdir(parents=True)
    (slice_ / "pids.max").write_text("500\n")
    (slice_.parent / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setattr(machine_state, "CGROUP", str(tmp_path))
    read = machine_state._read

    def elsewhere(path: str) -> bytes:
        return line if path == "/proc/self/cgroup" else read(path)

    monkeypatch.setattr(machine_state, "_read", elsewhere)
    with pytest.raises(FileNotFoundError):  # nothing is mounted: there may be any limits
        read_cgroups()
    (tmp_path / "cgroup.procs").touch()
    assert read_cgroups() == [{"pids.max": "500"}, {"cpu.max": "200000 100000"}, {}]


def test_this_machine_tells_all_there_is_to_tell() -> None:
    seen = describe_machine()
    assert {"systemd", "reboot", "tmp", "home", "gid", "processes"} <= set(seen)
    assert seen["unsynchronized"] in {True, False, None}


def test_the_login_is_as_old_as_the_session_of_the_agent() -> None:
    ask = f"""if True:
        from {main.__name__} import BEGAN
        from {machine_state.__name__} import _login_seconds
        import time
        time.sleep(1.5)
        print(_login_seconds(), time.clock_gettime(time.CLOCK_BOOTTIME) - BEGAN)
    """
    agent = "import subprocess, sys, time; time.sleep(0.5); subprocess.run(sys.argv[1:])"
    said = subprocess.run(
        [sys.executable, "-S", "-c", agent, sys.executable, "-c", ask],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    login, agent_lived = map(float, said.stdout.split())
    assert 0.5 <= login < 60
    assert agent_lived >= 1.5


def test_a_state_folder_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_state, "STATE", f"{tmp_path}/runs-")
    assert machine_state._state_problem() == ""
    folder = tmp_path / f"runs-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert "mode 777" in machine_state._state_problem()
    folder.chmod(0o700)
    assert machine_state._state_problem() == ""
