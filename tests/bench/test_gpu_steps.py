"""Steps of `make gpu`: real processes that fail, hang, escape or outlive their parent."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.gpu.steps import Result, Step, run

LONG = 600.0


def play(folder: Path, program: str, *, limit: float = 30.0, left_s: float = LONG) -> Result:
    """Run a step that is a Python program; what it prints is in `log`."""
    step = Step(name="a", about="", argv=(sys.executable, "-c", program), limit=limit)
    return run(step, environment=os.environ, log=folder / "log", cwd=folder, left_s=left_s)


def test_a_step_that_ends_well_is_ok_and_its_streams_are_kept(tmp_path: Path) -> None:
    found = play(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")

    assert (found.state, found.reason, found.left) == ("ok", "", ())
    assert (tmp_path / "log").read_text() == "out\nerr\n"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_a_step_that_fails_has_its_code(tmp_path: Path, program: str, reason: str) -> None:
    found = play(tmp_path, program)

    assert (found.state, found.reason) == ("failed", reason)


def test_a_command_that_is_not_there_fails(tmp_path: Path) -> None:
    step = Step(name="a", about="", argv=("/no/such/program",), limit=9.0)
    found = run(step, environment=os.environ, log=tmp_path / "log", cwd=tmp_path, left_s=LONG)

    assert found.state == "failed"
    assert "/no/such/program" in found.reason


HANGS = """
import os, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
# As torchrun starts its ranks: in a session of their own.
own = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
open("pids", "w").write(f"{os.getpid()} {own.pid}")
def stuck_in_a_collective():
    time.sleep(600)
stuck_in_a_collective()
"""


def pids(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "pids").read_text().split()]


def runs(pid: int) -> bool:
    """Tell whether a process runs; init may take a while to reap one that was killed."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_hang_is_named_with_its_stack_and_every_process_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    found = play(tmp_path, HANGS, limit=2.0)

    assert (found.state, found.reason) == ("hang", "did not end within 2 s")
    assert time.monotonic() - began < 15
    assert "stuck_in_a_collective" in (tmp_path / "log").read_text()
    assert len(pids(tmp_path)) == 2
    assert not any(map(runs, pids(tmp_path)))


def test_a_step_that_the_budget_ends_is_cut_and_no_hang(tmp_path: Path) -> None:
    found = play(tmp_path, "import time; time.sleep(600)", limit=60.0, left_s=1.0)

    assert found.state == "cut"
    assert "ended after 1 s of at most 60 s" in found.reason


LEAVES = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(601)"],
                        start_new_session=True)
open("pids", "w").write(str(left.pid))
os._exit(0)
"""


def test_a_process_that_is_left_behind_fails_the_step_and_is_ended(tmp_path: Path) -> None:
    found = play(tmp_path, LEAVES)

    assert (found.state, len(found.left)) == ("failed", 1)
    assert "sleep(601)" in found.left[0]
    assert not any(map(runs, pids(tmp_path)))


def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    other = psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert play(tmp_path, HANGS, limit=2.0).state == "hang"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
