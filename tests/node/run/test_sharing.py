"""Runs that share a machine: each with GPUs of its own, and nothing else than today without."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.probe.read import _lock_holders
from clusterctl.node.supervisor.control_socket import ControlSocket
from tests.node.conftest import Run
from tests.waiting import wait_until

SLEEP = "import time; print('here', flush=True); time.sleep(300)"
ASKED = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("asked").touch(), exit()))
print("here", flush=True)
time.sleep(300)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
os.write(1, b"here\\n")  # at once: with PYTHONUNBUFFERED `print` writes the end of a line by itself
time.sleep(300)
"""
MakeRun = Callable[..., Run]


def gpu(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


@pytest.fixture
def machine() -> str:
    return f"clusterctl-test-{uuid.uuid4().hex}"


@pytest.fixture
def take(machine: str) -> Iterator[Callable[..., ControlSocket]]:
    """Take the lock of GPUs, or of the whole machine."""
    with ExitStack() as held:

        def take(*gpus: int) -> ControlSocket:
            control_socket = ControlSocket.acquire(of(machine, *gpus))
            held.callback(control_socket.release)
            return control_socket

        yield take


def of(machine: str, *gpus: int) -> str:
    return f"{machine}/{','.join(map(gpu, gpus))}" if gpus else machine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a lock that nobody answers."""
    monkeypatch.setattr(run_lock, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(run_lock, "_MIN_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_disjoint_gpus_are_held_at_once_and_nothing_else_is(
    take: Callable[..., ControlSocket],
) -> None:
    take(0, 1)
    take(2, 3)
    for refused in ((1, 4), (3,), (0, 1, 2, 3), ()):
        with pytest.raises(OperationError, match="busy"):
            take(*refused)
    take(4)  # which a refused one had for a moment


@pytest.mark.usefixtures("impatient")
def test_the_whole_machine_excludes_gpus(take: Callable[..., ControlSocket]) -> None:
    whole = take()
    with pytest.raises(OperationError, match="busy"):
        take(0)
    whole.release()
    take(0).release()
    take()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("second", [(), (1, 2)])
def test_of_two_that_start_at_once_at_most_one_gets_the_lock(
    machine: str, second: tuple[int, ...]
) -> None:
    for _ in range(40):
        together, got = threading.Barrier(2), list[ControlSocket]()

        def start(
            name: str, together: threading.Barrier = together, got: list[ControlSocket] = got
        ) -> None:
            together.wait()
            try:
                got.append(ControlSocket.acquire(name))
            except OperationError:
                return

        names = (of(machine, 0, 1), of(machine, *second))
        threads = [threading.Thread(target=start, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) <= 1
        for control_socket in got:
            control_socket.release()


@pytest.fixture
def share(machine: str, make_run: MakeRun) -> Callable[..., Run]:
    """Make runs of the same machine, each with the GPUs of these numbers or with all."""

    def make(text: str, *gpus: int, **options: object) -> Run:
        run = make_run(text, **options)
        run.change = {"lock": of(machine, *gpus)}
        return run

    return make


def test_runs_with_their_own_gpus_live_side_by_side(share: Callable[..., Run]) -> None:
    first, second = share(SLEEP, 0, 1).start(), share(SLEEP, 2).start()
    third, whole = share(SLEEP, 1, 3), share(SLEEP)
    error = third.start_node(0)["error"]
    assert (error["kind"], error["holder"]["run"]) == ("busy", first.plan.run)
    assert error["message"].endswith(", on GPU-00000000, GPU-00000001")
    assert whole.start_node(0)["error"]["kind"] == "busy"
    for run in (first, second):
        run.wait_for_log(0, b"here")
        assert run.status()["supervisor"]["alive"]

    told = _lock_holders(first.change["lock"].partition("/")[0])
    assert told["holder"] is None
    assert {each["run"]: each["holds"] for each in told["sharing"]} == {
        first.plan.run: [gpu(0), gpu(1)], second.plan.run: [gpu(2)],
    }  # fmt: skip

    assert first.stop(grace=0)["gone"]
    assert not first.left()
    assert second.status()["supervisor"]["alive"]
    third.start()
    third.wait_for_log(0, b"here")


def test_a_run_whose_folder_is_gone_is_asked_to_end_and_the_other_is_left(
    share: Callable[..., Run],
) -> None:
    first, second = share(ASKED, 0).start(), share(SLEEP, 1).start()
    first.wait_for_log(0, b"here")
    first.delete_folder()
    machine = first.change["lock"].partition("/")[0]
    assert first.stop(grace=20, signal="TERM", lock=machine)["gone"]
    assert (first.workdir / "asked").exists()
    assert not first.left()
    assert second.status()["supervisor"]["alive"]


def test_a_dead_supervisor_ends_its_own_run_and_not_the_other(share: Callable[..., Run]) -> None:
    first, second = share(SLEEP, 0).start(), share(SLEEP, 1).start()
    os.kill(first.pid_of_supervisor(), signal.SIGKILL)
    assert first.ended()["end"]["by"] == "supervisor"
    assert not first.left()
    assert second.status()["supervisor"]["alive"]
    share(SLEEP, 0).start()


def test_what_an_older_run_left_on_other_gpus_is_nobodys_trouble(share: Callable[..., Run]) -> None:
    older = share(DAEMON, 0, 1).start()
    older.wait_for_log(0, b"here\nhere\n")
    older.kill_supervisor_and_guard()
    assert older.left()
    share(SLEEP, 2).start()
    error = share(SLEEP, 1).start_node(0)["error"]
    assert error["message"].startswith(f"processes of run {older.plan.run} are left")


def test_the_stop_file_of_a_living_run_is_left(share: Callable[..., Run], tmp_path: Path) -> None:
    asked = Job(stop=Stop(signal=None, file="STOP", grace=60))
    state = tmp_path / "state"
    first = share(SLEEP, 0, job=asked, state=state).start()
    first.wait_for_log(0, b"here")  # a stop that finds no rank yet asks nobody, and ends at once
    stop = threading.Thread(target=first.stop, kwargs={"grace": 50, "signal": None, "file": "STOP"})
    stop.start()
    try:
        first_file = first.workdir / "STOP"
        wait_until(first_file.exists)
        share(SLEEP, 1, job=asked, state=state).start()
        assert first_file.exists()
    finally:
        first.call(0, "stop", {**first.where(), "grace": 0})
        stop.join()


def test_runs_in_one_folder_are_not_asked_by_the_same_file(share: Callable[..., Run]) -> None:
    first = share(SLEEP, 0).start()
    second = share(SLEEP, 1, job=Job(stop=Stop(signal=None, file="STOP", grace=5)))
    second.change["workdir"] = str(first.workdir)
    error = second.start_node(0)["error"]
    assert error["message"] == (
        f"run {first.plan.run} works in {first.workdir} too: the file STOP would stop both"
    )
    assert "--workdir" in error["hint"]
    second.change["workdir"] = str(second.workdir)
    second.start()


def test_a_sync_sees_each_run_that_works_in_its_folder(share: Callable[..., Run]) -> None:
    share(SLEEP, 0).start()
    second = share(SLEEP, 1).start()
    machine = second.change["lock"].partition("/")[0]
    found = run_lock.live_run(str(second.workdir).encode(), machine)
    assert (found or {})["run"] == second.plan.run
    assert run_lock.live_run(str(second.folder).encode(), machine) is None


@pytest.mark.usefixtures("impatient")
def test_runs_that_would_meet_at_one_port_exclude_each_other(machine: str) -> None:
    one, other = (f"{machine}/{gpu(n)},port-29500" for n in (0, 1))
    assert run_lock.conflict(one, other)
    assert run_lock.valid_resources({"holds": [gpu(0), "port-29500"]}) == [gpu(0), "port-29500"]
    assert run_lock.valid_resources({"holds": [gpu(0), "port-\x1b"]}) == []
    control_socket = ControlSocket.acquire(one)
    try:
        with pytest.raises(OperationError, match="busy"):
            ControlSocket.acquire(other)
    finally:
        control_socket.release()
