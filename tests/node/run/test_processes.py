"""Processes are told apart for certain, and a run's are found by every mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.node.run.processes import processes
from tests.installed import LOCATION
from tests.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def state_of(pid: int) -> str:
    process = processes.read(pid)
    return process.state if process is not None else ""


@pytest.fixture
def stamp() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def child(stamp: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEP, env={**os.environ, "STAMP": stamp})
    yield process
    process.kill()
    process.wait()


def test_this_process_is_known() -> None:
    process = processes.read(os.getpid())
    assert process is not None
    assert (process.pid, process.parent, process.exited) == (os.getpid(), os.getppid(), False)
    assert processes.alive(process.key)


def test_one_that_began_later_has_another_key_whatever_its_number(
    child: subprocess.Popen[bytes],
) -> None:
    own, later = processes.read(os.getpid()), processes.read(child.pid)
    assert own is not None
    assert later is not None
    assert later.start > own.start
    assert not processes.alive((child.pid, own.start))


def test_the_command_of_a_process_is_what_was_typed(child: subprocess.Popen[bytes]) -> None:
    assert processes.command_of(child.pid) == " ".join(SLEEP)


def test_a_pid_that_was_used_before_is_another_process(child: subprocess.Popen[bytes]) -> None:
    pid, start = processes.key_of(child.pid)
    assert processes.alive((pid, start))
    assert not processes.alive((pid, start - 1))
    assert processes.send((pid, start - 1), signal.SIGKILL) == ""
    assert child.poll() is None
    assert processes.send((pid, start), signal.SIGKILL) == ""
    assert child.wait() == -signal.SIGKILL


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    program = tmp_path / ") Z 1 (\n"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([str(program), *SLEEP[1:]])
    try:
        wait_until(lambda: "Z 1" in Path(f"/proc/{process.pid}/comm").read_text())
        read = processes.read(process.pid)
        assert read is not None
        assert (read.parent, read.exited) == (os.getpid(), False)
    finally:
        process.kill()
        process.wait()


def test_a_zombie_is_gone_and_tells_how_it_ended() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    wait_until(lambda: state_of(pid) == "Z")
    zombie = processes.read(pid)
    assert zombie is not None
    assert zombie.exited
    assert os.WEXITSTATUS(zombie.exit_status) == 7
    assert not processes.alive(zombie.key)
    os.waitpid(pid, 0)
    assert processes.read(pid) is None


def test_a_leader_whose_threads_run_on_is_not_gone() -> None:
    text = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-c", text])
    try:
        wait_until(lambda: state_of(process.pid) == "Z")
        read = processes.read(process.pid)
        assert read is not None
        assert not read.exited
    finally:
        process.kill()
        process.wait()


def test_a_run_is_found_by_stamp_by_record_and_by_descent(
    child: subprocess.Popen[bytes], stamp: str
) -> None:
    def found(**marks: object) -> list[int]:
        wanted = {"environment": [b"STAMP=nobody's"], "recorded": [], "cgroup": "", **marks}
        return [process.pid for process in processes.of_run(**wanted)]  # type: ignore[arg-type]

    assert found() == []
    wait_until(lambda: found(environment=[b"STAMP=" + stamp.encode()]) == [child.pid])
    assert found(environment=[b"STAMP=" + stamp.encode(), b"OTHER=1"]) == []
    assert found(recorded=[processes.key_of(child.pid)]) == [child.pid]
    assert found(recorded=[(child.pid, 1)]) == []


def test_what_descends_from_a_run_is_the_runs() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) as parent:
        mark = processes.key_of(parent.pid)
        wait_until(
            lambda: len(processes.of_run(environment=[b"N=O"], recorded=[mark], cgroup="")) == 2
        )
        parent.kill()


def test_what_the_asker_descends_from_is_never_a_runs_not_even_pid_1() -> None:
    forged = [processes.key_of(pid) for pid in (1, os.getppid(), os.getpid())]
    assert processes.of_run(environment=[b"NOT=THERE"], recorded=forged, cgroup="") == []


def test_another_users_process_says_why_it_cannot_be_ended() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user to try it")
    text = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); os.setuid(65534);"
        "from clusterctl.node.run import processes as p;"
        "print(p.send(p.key_of(int(sys.argv[2])), 0))"
    )
    argv = ["/usr/bin/python3", "-c", text, str(LOCATION), str(os.getpid())]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    if said.returncode:
        pytest.skip("the source is not readable for other users here")
    assert said.stdout.strip() == "Operation not permitted"
