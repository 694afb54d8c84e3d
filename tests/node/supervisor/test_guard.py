"""A supervisor that dies: its guard ends the job within moments, here and on the other nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, LauncherName, Stop
from clusterctl.node import run_lock
from clusterctl.node.run.processes import processes
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

SLEEP = "import time; print('here'); time.sleep(300)"

FOREGROUND = '"$PYTHON" -u job.py\nexit $?\n'
AND_WAIT = '"$PYTHON" -u job.py &\nwait $!\n'

JOB = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:  # a daemon: a session of its own, its parent exited, its environment wiped
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["daemon-of-job", "-c", "import time; time.sleep(300)"], {})
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()  # a session of its own, still a grandchild
print("here", os.getpid())
time.sleep(300)
"""

TORCH, SOAK = pytest.mark.torch, pytest.mark.soak
TOGETHER = 10.0
"""Seconds that ends may be apart here: about 1 s on a machine with nothing else to do."""


def of_script(make_run: MakeRun, script: str, job: str, **options: object) -> Run:
    """Make a run of `bash train.sh` with this script, which runs job.py."""
    run = make_run("", **options)
    run.change = {"argv": ["bash", "train.sh"]}
    (run.workdir / "train.sh").write_text(script.replace("$PYTHON", sys.executable))
    (run.workdir / "job.py").write_text(job)
    return run.start()


def alive_below(pids: set[int]) -> set[int]:
    table = processes.process_table()
    below = processes.descendants(pids, table) | pids
    return {pid for pid in below if pid in table and not table[pid].exited}


def end_of_all(run: Run, pids: set[int]) -> float:
    """Wait until all these and everything stamped exited; return how long that took."""
    marks = {processes.key_of(pid) for pid in pids}
    began = time.monotonic()
    wait_until(lambda: not any(map(processes.alive, marks)), TOGETHER)
    took = time.monotonic() - began
    assert not run.left()
    return took


@pytest.mark.parametrize(
    ("launcher", "killed", "script"),
    [
        pytest.param("direct", 0, FOREGROUND, id="direct-master-foreground", marks=SOAK),
        pytest.param("direct", 0, AND_WAIT, id="direct-master-and-wait"),
        pytest.param("direct", 1, FOREGROUND, id="direct-worker-foreground"),
        pytest.param("direct", 1, AND_WAIT, id="direct-worker-and-wait", marks=SOAK),
        pytest.param("torchrun", 0, AND_WAIT, id="torchrun-master-and-wait", marks=(TORCH, SOAK)),
        pytest.param(
            "torchrun", 1, FOREGROUND, id="torchrun-worker-foreground", marks=(TORCH, SOAK)
        ),
    ],
)
def test_a_killed_supervisor_takes_a_scripts_whole_tree_along_on_all_nodes(
    make_run: MakeRun, launcher: LauncherName, killed: int, script: str
) -> None:
    run = of_script(make_run, script, JOB, nodes=2, launcher=launcher)
    for n in (0, 1):
        wait_until(lambda n=n: Path(run.paths(n).folder, f"ranks/{n}.log").exists())  # type: ignore[misc]
        run.wait_for_log(n, b"here", n=n, seconds=60)
        wait_until(lambda n=n: run.log(n, n=n).count(b"here") == 2)  # type: ignore[misc]
    wait_until(lambda: "peer-joined" in [event["kind"] for event in run.events(0)])
    supervisors = {run.pid_of_supervisor(n) for n in (0, 1)}
    daemon = "daemon-of-job"  # forked, it is not yet itself
    wait_until(
        lambda: sum(daemon in processes.command_of(pid) for pid in alive_below(supervisors)) == 2
    )
    there = alive_below(supervisors)
    os.kill(run.pid_of_supervisor(killed), signal.SIGKILL)
    print(f"{launcher} {killed}: all exited {end_of_all(run, there):.2f} s after the kill")
    dead, other = run.ended(killed), run.ended(1 - killed)
    assert (dead["state"], dead["end"]["by"]) == ("failed", "supervisor")
    assert dead["end"]["reason"] == "the supervisor was killed by signal 9"
    assert [rank["state"] for rank in dead["ranks"]] == ["ended"]
    assert (other["state"], other["end"]["by"]) == ("failed", "peer")
    name = run.names[killed]
    assert other["end"]["reason"] == f"{name}: the supervisor was killed by signal 9"
    assert run_lock.query(run.plan.nodes[killed].lock, {"ask": "who"}) is None


def test_a_killed_guard_costs_nothing(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2).start()
    run.wait_for_log(1, b"here", n=1)
    os.kill(run.pid_of_guard(1), signal.SIGKILL)
    wait_until(lambda: "guard-died" in [event["kind"] for event in run.events(1)])
    assert [run.status(n)["state"] for n in (0, 1)] == ["running", "running"]
    assert run.stop(1, grace=1)["gone"]
    assert run.ended(1)["state"] == "stopped"


def test_a_supervisor_that_is_only_stopped_is_not_taken_for_dead(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    supervisor = run.pid_of_supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(2)
    assert processes.alive(processes.key_of(run.status()["ranks"][0]["pid"]))
    os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: run.status()["state"] == "running")


def test_a_signal_to_the_guard_stops_the_run_as_one_to_the_supervisor(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    os.kill(run.pid_of_guard(), signal.SIGTERM)
    assert run.ended()["state"] == "stopped"
    assert not run.left()


def test_a_supervisor_killed_during_a_stop_leaves_a_stopped_run_and_no_stop_file(
    make_run: MakeRun,
) -> None:
    job = Job(stop=Stop(signal=None, file="STOP", grace=60))
    run = make_run(SLEEP, job=job).start()
    run.wait_for_log(0, b"here")
    supervisor = run.pid_of_supervisor()
    os.kill(supervisor, signal.SIGTERM)
    wait_until((run.workdir / "STOP").exists)
    wait_until(lambda: run.status()["end"] is not None)
    os.kill(supervisor, signal.SIGKILL)
    node = run.ended()
    assert (node["state"], node["end"]["by"]) == ("stopped", "stop")
    assert node["end"]["reason"].endswith("; the supervisor was killed by signal 9")
    assert not (run.workdir / "STOP").exists()
    assert not run.left()


def test_a_supervisor_killed_after_a_good_end_leaves_a_good_end(make_run: MakeRun) -> None:
    until_go = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
    text = f"import os\nif os.environ['RANK'] == '0':\n print('here')\nelse:\n {until_go}"
    run = make_run(text.replace("\nwhile", "\n while"), nodes=2).start()
    wait_until(lambda: run.status(0)["end"] is not None)
    os.kill(run.pid_of_supervisor(0), signal.SIGKILL)
    wait_until(lambda: "supervisor-died" in [event["kind"] for event in run.events(0)])
    (run.workdir / "go").touch()
    assert [run.ended(n)["state"] for n in (1, 0)] == ["finished", "finished"]


def test_a_signal_that_comes_as_the_supervisor_leaves_does_not_undo_the_end(
    make_run: MakeRun,
) -> None:
    """Slurm, and systemd, send TERM to what is left of a job that has just ended."""
    run = make_run("print('here')").start()
    supervisor = run.pid_of_supervisor()
    wait_until(lambda: "end" in [event["kind"] for event in run.events()])
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: not run.left())
    assert "supervisor-died" not in [event["kind"] for event in run.events()]
