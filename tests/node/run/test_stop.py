"""`stop`: asks as the job says, ends the whole tree, and proves that nothing is left."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.run.files import stop_file
from clusterctl.node.run.operations.node_run import LocalRun
from clusterctl.node.run.operations.stop import NodeStop, describe_survivor
from clusterctl.node.run.processes import processes
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

SLEEP = "import time; print('here'); time.sleep(300)"

SAVES = """
import signal, sys, time
def save(number, frame):
    print("saving"); time.sleep(0.5); print("saved"); sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("here")
for _ in range(6000): time.sleep(0.05)
"""

WATCHES = """
import os, time
print("here")
while not os.path.exists("STOP"): time.sleep(0.02)
time.sleep(0.3); print("saved")
"""

DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.setsid() if os.fork() == 0 else 0
os.write(1, b"here\\n")  # at once: with PYTHONUNBUFFERED `print` writes the end of a line by itself
time.sleep(300)
"""


FREE: dict[str, object] = {
    "port_free": True,
    "port_holder": None,
    "gpu_free": True,
    "strangers": [],
    "elsewhere": [],
    "ended": None,
    "had_run": True,
    "left_out": [],
}


def test_ranks_are_asked_by_the_jobs_signal_and_get_the_time_to_save(make_run: MakeRun) -> None:
    run = make_run(SAVES, nodes=2, job=Job(stop=Stop(signal="USR1", grace=20))).start()
    for n in (0, 1):
        run.wait_for_log(n, b"here", n=n)
    began = time.monotonic()
    assert run.stop(0, reason="a test") == {
        "end": True, "gone": True, "left": [], "nodes": run.names, **FREE,
    }  # fmt: skip
    assert run.stop(1)["gone"]
    assert time.monotonic() - began < 10
    for n in (0, 1):
        assert run.log(n, n=n) == b"here\nsaving\nsaved\n"
        node = run.status(n)
        assert (node["state"], node["end"]["by"], node["end"]["reason"]) == (
            "stopped", "stop", "a test",
        )  # fmt: skip
        assert node["ranks"][0]["exit_code"] == 0
        ended = next(event for event in run.events(n) if event["kind"] == "rank-ended")
        assert ended["ordered"] is True


def test_ranks_are_asked_by_a_file_that_is_gone_afterwards(make_run: MakeRun) -> None:
    run = make_run(WATCHES, job=Job(stop=Stop(signal=None, file="STOP", grace=20))).start()
    run.wait_for_log(0, b"here")
    assert run.stop()["gone"]
    assert run.log(0) == b"here\nsaved\n"
    assert not (run.workdir / "STOP").exists()
    assert run.status()["state"] == "stopped"


@pytest.mark.parametrize("name", ["/etc/nologin", "../STOP", "a/../../STOP"])
def test_a_stop_file_outside_of_workdir_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "work" / "a").mkdir(parents=True)
    name = name.replace("/etc", str(tmp_path))
    with pytest.raises(OSError, match="must be in workdir"):
        stop_file.create(str(tmp_path / "work"), name)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert stop_file.create(str(tmp_path / "work"), "a/STOP") == str(tmp_path / "work/a/STOP")


def test_a_file_of_the_persons_own_is_left_alone(make_run: MakeRun) -> None:
    run = make_run(SLEEP, job=Job(stop=Stop(signal=None, file="STOP", grace=0))).start()
    (run.workdir / "STOP").write_text("mine")
    assert run.stop()["gone"]
    assert (run.workdir / "STOP").read_text() == "mine"


def test_what_does_not_listen_is_killed_after_the_grace(make_run: MakeRun) -> None:
    run = make_run(DEAF, procs=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here\nhere\n")
    stopped = run.stop(grace=0.5)
    assert stopped["gone"]
    assert not run.left()
    node = run.status()
    assert [rank["signal"] for rank in node["ranks"]] == [signal.SIGKILL] * 2
    assert node["end"]["over"] >= node["end"]["time"] + 0.5  # the grace lies between


def test_a_stopped_rank_is_woken_to_hear_it(make_run: MakeRun) -> None:
    run = make_run(SAVES, job=Job(stop=Stop(signal="USR1", grace=20))).start()
    run.wait_for_log(0, b"here")
    os.kill(run.status()["ranks"][0]["pid"], signal.SIGSTOP)
    assert run.stop()["gone"]
    assert run.log(0).endswith(b"saved\n")


def test_a_second_stop_shortens_the_grace_of_the_first(make_run: MakeRun) -> None:
    run = make_run(DEAF, job=Job(stop=Stop(grace=300))).start()
    run.wait_for_log(0, b"here\nhere\n")
    os.kill(run.pid_of_supervisor(), signal.SIGTERM)  # a stop with the job's own grace
    wait_until(lambda: times(run, "stop-ordered") != [])
    assert run.stop(grace=0)["gone"]
    assert len(times(run, "rank-ended")) == 1  # the supervisor saw it: `stop` did not kill that one


def times(run: Run, kind: str) -> list[float]:
    return [event["time"] for event in run.events() if event["kind"] == kind]


def test_a_supervisor_that_was_stopped_is_woken_so_that_its_ranks_may_save(
    make_run: MakeRun,
) -> None:
    run = make_run(SAVES, job=Job(stop=Stop(signal="USR1", grace=20))).start()
    run.wait_for_log(0, b"here")
    os.kill(run.pid_of_supervisor(), signal.SIGSTOP)
    assert run.stop()["gone"]
    assert run.log(0).endswith(b"saved\n")


def test_it_works_without_the_supervisor(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(DEAF, procs=2).start()
    for rank in (0, 1):
        run.wait_for_log(rank, b"here\nhere\n")
    time.sleep(2.2)  # the supervisor notes the processes below it every 2 s
    run.kill_supervisor_and_guard()
    left = run.left()
    assert left
    with monkeypatch.context() as patch:  # such as one that is stuck in the kernel
        patch.setattr(LocalRun, "kill", lambda _run: left)
        link = CallChannel(io.BytesIO(), os.open(os.devnull, os.O_WRONLY))
        stuck = NodeStop({}, LocalRun.find(run.where()), link)
        stuck.ask()
        stuck.kill()
        stuck.verify()
    assert not stuck.answer().head["gone"]
    assert not Path(run.paths().end).exists()
    stages = [m.head.get("stage") for m in run.call(0, "stop", {**run.where(), "grace": 0})]
    assert "killing" in stages
    assert not run.left()
    assert (run.status()["state"], run.status()["end"]["by"]) == ("lost", "lost")
    assert not Path(run.paths().reserve).exists()
    assert run.stop()["gone"]


def test_a_process_that_wiped_its_name_and_environment_is_found_by_its_number(
    make_run: MakeRun,
) -> None:
    wiped = (
        "import os, sys; os.setsid() if os.fork() == 0 else None;"
        "print(os.getpid());"
        "os.execve(sys.executable, ['idle', '-c', 'import time; time.sleep(300)'], {})"
    )
    run = make_run(wiped).start()
    run.wait_for_log(0, b"\n")
    wait_until(lambda: len(run.log(0).split()) == 2)
    pids = [int(word) for word in run.log(0).split()]
    wait_until(lambda: set(pids) <= marks(run))
    run.kill_supervisor_and_guard()
    assert run.stop()["gone"]
    for pid in pids:
        assert not processes.alive(processes.key_of(pid))


def marks(run: Run) -> set[int]:
    return {int(word) for word in Path(run.paths().processes).read_text().split()[::2]}


def test_other_runs_and_reused_numbers_are_never_touched(make_run: MakeRun) -> None:
    other = make_run(SLEEP).start()
    other.wait_for_log(0, b"here")
    rank = other.status()["ranks"][0]["pid"]
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    with Path(run.paths().processes).open("a") as file:
        # The number of another's process, but not when that one started.
        file.write(f"{rank} {processes.key_of(rank)[1] - 1}\n")
    run.kill_supervisor_and_guard()
    assert run.stop()["gone"]
    assert processes.alive(processes.key_of(rank))
    assert other.status()["state"] == "running"


def test_a_port_that_another_holds_is_said(make_run: MakeRun) -> None:
    hold = "import os,socket,time; s=socket.create_server(('127.0.0.1', PORT)); time.sleep(300)"
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    # Not a rank of another run: one may take the port, and that is no fault of this run.
    code = hold.replace("PORT", str(run.plan.master_port))
    with subprocess.Popen([sys.executable, "-c", code]) as holder:
        try:
            wait_until(lambda: run.plan.master_port in listening_ports())
            stopped = run.stop()
            assert holder.poll() is None
        finally:
            holder.kill()
    assert (stopped["gone"], stopped["port_free"]) == (True, False)
    assert stopped["port_holder"]["pid"] == holder.pid
    assert "create_server" in stopped["port_holder"]["cmd"]


def listening_ports() -> set[int]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}


def test_a_gpu_that_keeps_memory_for_the_dead_is_no_proof(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    smi = tmp_path / "nvidia-smi"
    held = tmp_path / "held"
    smi.write_text(f"#!/bin/sh\ncat {held}\n")
    smi.chmod(0o755)
    run = make_run(SLEEP)
    run.change = {"device": "cuda"}
    run.start()
    run.wait_for_log(0, b"here")
    rank = run.status()["ranks"][0]["pid"]
    held.write_text(
        f"{os.getpid()}, 10 MiB, 00000000:3B:00.0\n{rank}, 71234 MiB, 00000000:18:00.0\n"
    )
    stopped = run.stop()
    assert not stopped["gone"]
    assert [left["pid"] for left in stopped["left"]] == [rank]
    assert "71234 MiB of GPU 00000000:18:00.0" in stopped["left"][0]["why"]
    assert stopped["gpu_free"] is False
    held.write_text("")
    assert (run.stop()["gone"], run.stop()["gpu_free"]) == (True, True)
    smi.write_text("#!/bin/sh\necho Failed to initialize NVML; exit 255\n")
    assert (run.stop()["gone"], run.stop()["gpu_free"]) == (True, None)


def test_processes_that_took_gpu_memory_during_the_run_are_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    smi, held = tmp_path / "nvidia-smi", tmp_path / "held"
    smi.write_text(f"#!/bin/sh\ncat {held}\n")
    smi.chmod(0o755)
    held.write_text("")
    run = make_run(SLEEP)
    run.change = {"device": "cuda"}
    run.start()
    run.wait_for_log(0, b"here")
    other = make_run(SLEEP).start()
    other.wait_for_log(0, b"here")
    with subprocess.Popen(["sleep", "300"]) as container:
        wait_until(lambda: processes.command_of(container.pid) == "sleep 300")
        others = (os.getpid(), other.status()["ranks"][0]["pid"], container.pid)
        held.write_text("".join(f"{pid}, 71234 MiB, 00000000:18:00.0\n" for pid in others))
        try:
            for _ in range(2):
                stopped = run.stop(grace=0)
                assert (stopped["gone"], stopped["gpu_free"]) == (True, True)
                assert stopped["strangers"] == [
                    {
                        "pid": container.pid,
                        "cmd": "sleep 300",
                        "why": "holds 71234 MiB of GPU 00000000:18:00.0;"
                        " not of the run's processes (a container?)",
                    }
                ]
        finally:
            container.kill()
    assert run.stop()["strangers"] == []
    with subprocess.Popen(["sleep", "300"]) as later:
        held.write_text(f"{later.pid}, 10 MiB, 00000000:18:00.0\n")
        assert run.stop()["strangers"] == []
        later.kill()


@pytest.mark.parametrize(
    ("state", "refusal", "why"),
    [
        ("D", "", "stuck in the kernel (state D)"),
        ("S", "Operation not permitted", "Operation not permitted"),
        ("S", "", "it was started again and again"),
    ],
)
def test_why_a_process_is_left_is_said(
    monkeypatch: pytest.MonkeyPatch, state: str, refusal: str, why: str
) -> None:
    monkeypatch.setattr(processes, "send", lambda _mark, _number: refusal)
    own = processes.read(os.getpid())
    assert own is not None
    own.state = state
    told = describe_survivor(own)
    assert told == {"pid": own.pid, "cmd": processes.command_of(own.pid), "why": why}


def test_what_nobody_can_look_at_is_not_proven(make_run: MakeRun) -> None:
    run = make_run("pass")
    stopped = run.stop()
    assert (stopped["gone"], stopped["port_free"], stopped["gpu_free"]) == (True, None, None)


def test_a_part_without_a_folder_is_proven_by_what_the_controller_planned(
    make_run: MakeRun,
) -> None:
    """It never began, or its folder was deleted: either way the plan says what to look for."""
    run = make_run("pass")
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = {"port": server.getsockname()[1]}
        worker = run.stop(planned={"node_rank": 1, "device": "cpu", "master": master})
        first = run.stop(planned={"node_rank": 0, "device": "cpu", "master": master})
        on_gpus = run.stop(planned={"node_rank": 1, "device": "cuda", "master": master})
    assert (worker["gone"], worker["port_free"], worker["gpu_free"]) == (True, True, True)
    assert (first["port_free"], first["port_holder"]["pid"]) == (False, os.getpid())
    assert on_gpus["gpu_free"] is None


def test_a_port_that_another_run_has_by_now_is_no_trouble_of_one_without_a_folder(
    make_run: MakeRun,
) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
    with subprocess.Popen(
        [sys.executable, "-uc", f"{listen}; input()"],
        env={**os.environ, "CLUSTERCTL_RUN_ID": "lab-other"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        planned = {
            "node_rank": 0,
            "device": "cpu",
            "master": {"port": int(other.stdout.readline())},
        }
        stopped = make_run("pass").stop(planned=planned)
        other.kill()
    assert (stopped["port_free"], stopped["port_holder"]) == (True, None)


def test_a_part_that_was_kept_from_beginning_stays_proven_gone(make_run: MakeRun) -> None:
    """What `launch` barred on a node that could not start is gone for every later `stop`."""
    run = make_run(SLEEP)
    barred = run.stop(prevent_start=True)
    assert (barred["gone"], barred["port_free"], barred["gpu_free"]) == (True, True, True)
    assert run.stop() == barred
    words = "the run was stopped before it had started here"
    assert run.start_node(0)["error"]["message"] == words


def test_a_start_that_was_slow_comes_too_late_after_a_stop(make_run: MakeRun) -> None:
    """The controller may be gone: nobody but `stop` keeps such a run from starting."""
    run = make_run(SLEEP)
    planned = {"node_rank": 1, "device": "cpu", "master": {"port": 1}}
    stopped = run.stop(planned=planned)
    assert (stopped["gone"], stopped["port_free"], stopped["gpu_free"]) == (True, True, True)
    words = "the run was stopped before it had started here"
    assert run.start_node(0)["error"]["message"] == words
    assert run.stop(planned=planned) == stopped


def test_a_live_run_whose_folder_was_deleted_is_not_called_absent(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    run.delete_folder()
    where = {**run.where(), "lock": run.plan.nodes[0].lock}
    error = run.call(0, "status", where)[-1].head["error"]
    assert error["kind"] == "no-folder"
    assert f"{run.plan.run} lives on this node, but its folder was deleted" in error["message"]
    assert error["hint"] == f"clusterctl stop {run.plan.run} ends it"
    assert run.stop(lock=where["lock"])["gone"]
    assert run.call(0, "status", where)[-1].head["error"]["kind"] == "no-run"


def test_a_stop_leaves_the_deleted_folder_of_a_live_part_alone(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    run.delete_folder()
    planned = {"node_rank": 1, "device": "cpu", "master": {"port": 1}}
    assert run.stop(planned=planned, lock=run.plan.nodes[0].lock)["gone"]
    assert not Path(run.paths().folder).exists()


def test_numbers_of_an_earlier_boot_are_other_peoples_processes(make_run: MakeRun) -> None:
    run = make_run("pass").start()
    run.ended()
    other = make_run(SLEEP).start()
    other.wait_for_log(0, b"here")
    rank = other.status()["ranks"][0]["pid"]
    with Path(run.paths().processes).open("a") as file:
        file.write("{} {}\n".format(*processes.key_of(rank)))
    job = json.loads(Path(run.paths().job).read_text())
    Path(run.paths().job).write_text(json.dumps({**job, "boot_id": "another"}))
    assert run.stop()["gone"]
    assert other.status()["state"] == "running"


@pytest.mark.parametrize("by", ["stop", "start"])
def test_a_stop_file_of_a_killed_supervisor_does_not_stop_the_next_run(
    make_run: MakeRun, by: str
) -> None:
    job = Job(stop=Stop(signal=None, file="STOP", grace=60))
    run = make_run(SLEEP, job=job).start()
    run.wait_for_log(0, b"here")
    os.kill(run.pid_of_supervisor(), signal.SIGTERM)
    wait_until(lambda: json.loads(Path(run.paths().supervisor).read_text())["stop_file"] != "")
    run.kill_supervisor_and_guard()
    assert (run.workdir / "STOP").exists()
    if by == "stop":
        assert run.stop()["gone"]
    else:
        following = make_run(SLEEP, job=job, state=run.folder / "state")
        following.start()
        following.stop(grace=0)
    assert not (run.workdir / "STOP").exists()


def test_a_run_that_has_ended_is_stopped_already(make_run: MakeRun) -> None:
    run = make_run("pass").start()
    assert run.ended()["state"] == "finished"
    expected = {"end": True, "gone": True, "left": [], "nodes": run.names, **FREE}
    assert run.stop() == {**expected, "ended": "finished"}
    assert run.status()["state"] == "finished"
