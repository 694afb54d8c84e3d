"""A stop reaches the training behind a script at once, once, and nothing that it needs to save."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, LauncherName, Stop
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.processes import processes
from clusterctl.node.supervisor.ranks import stop_signals
from clusterctl.node.supervisor.ranks.stop_signals import (
    ROUNDS_WITHOUT_HANDLER,
    Signals,
    StopSignals,
    signal_ranks,
)
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

GRACE = 100.0
"""Longer than any test may take: what ends sooner was reached by the request itself."""

SAVES = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("here")
while not heard: time.sleep(0.02)
print("saving")
for _ in range(40): time.sleep(0.02)
print("saved after", len(heard))
"""

DEAF = "import time; print('here', flush=True); time.sleep(300)"

SCRIPTS = {
    "foreground": "$PYTHON -u job.py\n",
    "foreground, and its code": "$PYTHON -u job.py\nexit $?\n",
    "and wait": "$PYTHON -u job.py &\nwait\n",
    "through tee": "$PYTHON -u job.py 2>&1 | tee tee.log\n",
    "in a session of its own": "setsid $PYTHON -u job.py &\nwait\n",
    "a trap that passes it on": (
        "trap 'kill -TERM $PID' TERM\n$PYTHON -u job.py &\nPID=$!\nwait $PID\nwait $PID\n"
    ),
    "a trap that waits for it": "trap 'echo cleaned up' TERM EXIT\n$PYTHON -u job.py\n",
    "a script in a script": "bash inner.sh\n",
    "abandoned in its group": "( $PYTHON -u job.py & )\nsleep 1000\n",
}


def script(make_run: MakeRun, text: str, job: str, **options: object) -> Run:
    """Start a run of `bash train.sh`, which runs job.py."""
    run = make_run("", job=Job(stop=Stop(grace=GRACE)), **options)
    run.change = {"argv": ["bash", "train.sh"]}
    (run.workdir / "train.sh").write_text(text.replace("$PYTHON", sys.executable))
    (run.workdir / "inner.sh").write_text(f"{sys.executable} -u job.py\n")
    (run.workdir / "job.py").write_text(job)
    return run.start()


def stop_seconds(run: Run) -> float:
    began = time.monotonic()
    assert run.stop(grace=GRACE)["gone"]
    assert not run.left()
    return time.monotonic() - began


@pytest.mark.parametrize("form", SCRIPTS)
def test_a_training_behind_a_script_saves_and_hears_it_once(make_run: MakeRun, form: str) -> None:
    run = script(make_run, SCRIPTS[form], SAVES)
    run.wait_for_log(0, b"here")
    print(f"{form}: stopped in {stop_seconds(run):.2f} s")
    assert b"saving\nsaved after 1\n" in run.log(0)
    node = run.status()
    assert (node["state"], node["end"]["by"]) == ("stopped", "stop")


@pytest.mark.torch
@pytest.mark.parametrize("form", ["foreground", pytest.param("and wait", marks=pytest.mark.soak)])
def test_under_torchrun_the_agent_leaves_a_script_the_time_to_save(
    make_run: MakeRun, form: str
) -> None:
    run = script(make_run, SCRIPTS[form], SAVES, launcher="torchrun", procs=2)
    for rank in (0, 1):
        run.wait_for_log(rank, b"here")
    print(f"{form}: stopped in {stop_seconds(run):.2f} s")
    for rank in (0, 1):
        assert run.log(rank).endswith(b"saving\nsaved after 1\n")
    assert run.status()["state"] == "stopped"


@pytest.mark.parametrize(
    "text",
    [
        "$PYTHON -u job.py\n",
        "$PYTHON -u job.py &\nwait\n",
        "trap 'echo cleaned up' EXIT\n$PYTHON -u job.py\n",
        "$PYTHON -u job.py | cat\n",
        "while true; do $PYTHON -u job.py; done\n",
    ],
)
def test_a_program_that_does_not_listen_is_ended_behind_a_script_too(
    make_run: MakeRun, text: str
) -> None:
    run = script(make_run, text, DEAF)
    run.wait_for_log(0, b"here")
    stop_seconds(run)


CATCHES_ALL = """
import signal, time
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
    signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else lambda *_: None)
open("ready", "w")
while not __import__("os").path.exists("trainer-ended"): time.sleep(0.02)
"""

HAS_A_SERVICE = f"""
import atexit, os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CATCHES_ALL!r}])
while not os.path.exists("ready"): time.sleep(0.02)
print("here", flush=True)
time.sleep(300)
"""


def test_a_service_that_catches_every_signal_does_not_keep_a_trainer_from_hearing(
    make_run: MakeRun,
) -> None:
    run = script(make_run, SCRIPTS["foreground"], HAS_A_SERVICE)
    run.wait_for_log(0, b"here")
    trainer = next(
        process.key
        for process in processes.process_table().values()
        if processes.command_of(process.pid).endswith("-u job.py")
        and run.workdir == Path(f"/proc/{process.pid}/cwd").readlink()
    )
    stopping = threading.Thread(target=run.stop, kwargs={"grace": GRACE})
    stopping.start()
    try:
        wait_until(lambda: not processes.alive(trainer), seconds=30)
    finally:
        (run.workdir / "trainer-ended").touch()
        stopping.join()
    assert not run.left()


def test_what_a_script_starts_after_the_training_saved_is_ended_too(make_run: MakeRun) -> None:
    run = script(make_run, "$PYTHON -u job.py\nsleep 1000\necho never\n", SAVES)
    run.wait_for_log(0, b"here")
    stop_seconds(run)
    assert run.log(0).endswith(b"saved after 1\n")


def test_a_stopped_training_behind_a_script_is_woken(make_run: MakeRun) -> None:
    run = script(make_run, SCRIPTS["foreground"], SAVES + "\n")
    run.wait_for_log(0, b"here")
    table = processes.process_table()
    below = processes.descendants([run.status()["ranks"][0]["pid"]], table)
    (training,) = (pid for pid in below if "job.py" in processes.command_of(pid))
    processes.send(table[training].key, 19)
    wait_until(lambda: processes.process_table()[training].state == "T")
    stop_seconds(run)
    assert run.log(0).endswith(b"saved after 1\n")


LOADS = """
import signal, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, n):
        time.sleep(0.02)
        return torch.zeros(1)

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
if __name__ == "__main__":
    left = 5
    for batch in DataLoader(Slow(), num_workers=2, multiprocessing_context="METHOD"):
        print("here" if not heard else "one more batch", flush=True)
        left -= bool(heard)
        if not left: break
    print("saved after", len(heard), flush=True)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("launcher", "method"),
    [("direct", "fork"), pytest.param("torchrun", "spawn", marks=pytest.mark.soak)],
)
def test_workers_of_a_data_loader_live_on_while_the_trainer_needs_them(
    make_run: MakeRun, launcher: LauncherName, method: str
) -> None:
    job = LOADS.replace("METHOD", method)
    run = script(make_run, SCRIPTS["foreground"], job, launcher=launcher)
    wait_until(lambda: Path(run.paths().folder, "ranks/0.log").exists())
    run.wait_for_log(0, b"here")
    stop_seconds(run)
    assert b"one more batch\nsaved after 1\n" in run.log(0)
    assert b"killed by signal" not in run.log(0)


def test_a_shortage_of_descriptors_does_not_lose_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = EventLoop()
    child = subprocess.Popen(["sleep", "100"])
    table = processes.process_table

    def shortage() -> dict[int, processes.Process]:
        monkeypatch.setattr(processes, "process_table", table)
        raise OSError(24, "too many open files")

    monkeypatch.setattr(processes, "process_table", shortage)
    try:
        signal_ranks(loop, [processes.key_of(child.pid)], "TERM")
        while child.poll() is None:
            loop.run_once()
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -15


class Table:
    """Simulated processes, with what each does with a signal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, processes.Process] = {}
        self.signals: dict[int, Signals] = {}
        self.shells: set[int] = set()
        self.forks: set[int] = set()
        self.sent: list[tuple[int, int]] = []
        nothing = Signals(0, 0, 0)
        monkeypatch.setattr(Signals, "of", lambda pid: self.signals.get(pid, nothing))
        monkeypatch.setattr(stop_signals, "is_shell", lambda pid: pid in self.shells)
        monkeypatch.setattr(stop_signals, "same_program", lambda pid, _parent: pid in self.forks)
        monkeypatch.setattr(
            processes, "send", lambda mark, number: self.sent.append((mark[0], number))
        )

    def add(
        self, pid: int, parent: int, *, group: int = 10, listens: bool = False, state: str = "S"
    ) -> None:
        self.processes[pid] = processes.Process(
            pid, parent, group=group, start=pid, state=state, threads=1, exit_status=0
        )
        if listens:
            self.signals[pid] = Signals(0, 0, caught=1 << signal.SIGTERM - 1)


def test_who_listens_is_asked_once_and_nobody_below_or_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second TERM ends a trainer that is saving; one to its workers makes it fail."""
    table = Table(monkeypatch)
    table.shells, table.forks = {10}, {12}
    table.add(10, 1)  # the script
    table.add(11, 10, listens=True)  # the training
    table.add(12, 11, listens=True)  # a worker that it forked
    table.add(13, 11, group=13)  # its helper
    table.add(20, 1, group=20, listens=True)  # another's
    asked = StopSignals((10, 10), signal.SIGTERM)
    for _ in range(ROUNDS_WITHOUT_HANDLER + 2):
        assert asked.ask(table.processes)
    assert table.sent == [(11, signal.SIGTERM)]


def test_where_nothing_listens_all_of_the_rank_is_asked_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(monkeypatch)
    table.shells = {10}
    table.add(10, 1)
    table.add(11, 10)
    table.add(12, 1)  # of its group, though its parent has exited
    table.add(20, 1, group=20)
    asked = StopSignals((10, 10), signal.SIGTERM)
    for _ in range(3):
        asked.ask(table.processes)
    assert sorted(table.sent) == [(pid, signal.SIGTERM) for pid in (10, 11, 12)]
    # Else the shell could begin its next line between the two signals.
    assert table.sent.index((10, signal.SIGTERM)) < table.sent.index((11, signal.SIGTERM))
    for pid in (10, 11, 12):
        del table.processes[pid]
    assert not asked.ask(table.processes)


def test_the_number_of_a_rank_that_is_gone_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is the number of its process group."""
    table = Table(monkeypatch)
    table.add(10, 1, listens=True)
    table.add(11, 10, listens=True)
    assert not StopSignals((10, 9), signal.SIGTERM).ask(table.processes)
    was_there = StopSignals((10, 9), signal.SIGTERM)
    before = copy.copy(table.processes[10])
    before.start = 9
    assert was_there.ask({10: before})
    assert table.sent == [(10, signal.SIGTERM)]
    assert not was_there.ask(table.processes)
    assert table.sent == [(10, signal.SIGTERM)]


def test_what_was_stopped_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch)
    table.add(10, 1, listens=True, state="T")
    table.add(11, 10, state="T")
    table.add(20, 1, group=20, state="T")
    StopSignals((10, 10), signal.SIGTERM).ask(table.processes)
    assert table.sent[0] == (10, signal.SIGTERM)
    assert sorted(table.sent[1:]) == [(10, signal.SIGCONT), (11, signal.SIGCONT)]


def test_what_counts_as_listening() -> None:
    term = 1 << signal.SIGTERM - 1
    for signals, listens in (
        (Signals(0, 0, caught=term), True),
        (Signals(blocked=term, ignored=0, caught=0), True),  # a thread of it waits for the signal
        (Signals(0, 0, caught=term << 1), False),
        (Signals(0, ignored=term, caught=0), False),
        (Signals(0, 0, caught=(1 << 40) - 1), False),  # the Go runtime
    ):
        assert signals.handles(signal.SIGTERM) is listens
    assert Signals(0, ignored=term, caught=0).ignores(signal.SIGTERM)
    assert not Signals(0, ignored=term, caught=0).ignores(signal.SIGHUP)
