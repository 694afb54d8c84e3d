"""A file server that does not answer, and a tool stuck in the kernel: nothing waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Job, Stop
from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.run.processes import processes, release_check
from clusterctl.sandbox.faults import hang
from clusterctl.verbs.dump.own_py_spy import find_py_spy
from tests.node.conftest import Run
from tests.waiting import wait_until

MakeRun = Callable[..., Run]
Hang = Callable[..., None]

SLEEP = "import time; print('here'); time.sleep(300)"

STUCK = """
import ctypes, os, struct, sys
device = os.open("/dev/fuse", os.O_RDWR)
data = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"stuck", os.fsencode(sys.argv[2]), b"fuse", ctypes.c_ulong(0), data) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
unique = struct.unpack_from("<Q", os.read(device, 1 << 20), 8)[0]  # the kernel's greeting
reply = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)
os.write(device, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)
os.write(1, b"ready\\n")
while True:
    os.read(device, 1 << 20)  # taken and never answered: who asked waits beyond any signal
"""


@pytest.fixture
def make_hang() -> Iterator[Hang]:
    """Let nothing below a folder answer; with `stuck` no signal ends who looks into it."""
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("no filesystem can be mounted here")
    with ExitStack() as ending:

        def make(folder: Path, *, stuck: bool = False) -> None:
            program = ["-c", STUCK] if stuck else [str(Path(hang.__file__))]
            process = subprocess.Popen(
                [sys.executable, *program, "hang", str(folder)], stdout=subprocess.PIPE
            )
            ending.enter_context(process)
            ending.callback(
                subprocess.run, ["umount", "--lazy", "--no-canonicalize", str(folder)], check=False
            )
            ending.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

        yield make


def test_a_start_in_a_hung_workdir_is_refused(make_run: MakeRun, make_hang: Hang) -> None:
    run = make_run(SLEEP)
    make_hang(run.workdir)
    error = run.start_node(0)["error"]
    assert error["kind"] == "workdir"
    assert "no answer within 10 s" in error["message"]
    assert "findmnt" in error["hint"]
    assert not Path(run.paths().folder).exists()


def test_a_stop_file_in_a_hung_share_does_not_keep_a_run_from_its_end(
    make_run: MakeRun, make_hang: Hang
) -> None:
    run = make_run(SLEEP, job=Job(stop=Stop(file="STOP", grace=1))).start()
    run.wait_for_log(0, b"here")
    make_hang(run.workdir)
    os.kill(run.pid_of_supervisor(), signal.SIGTERM)
    wait_until(lambda: Path(run.paths().end).exists())
    node = run.status()
    assert node["state"] == "stopped"
    assert node["ranks"][0]["state"] == "ended"
    assert not run.left()
    stopped = next(event for event in run.events() if event["kind"] == "stop-ordered")
    assert "no answer within 1 s" in stopped["problem"]


def test_no_run_starts_over_an_older_ones_process_that_is_stuck_in_the_kernel(
    make_run: MakeRun, make_hang: Hang, tmp_path: Path
) -> None:
    (share := tmp_path / "share").mkdir()
    stuck = "import os, sys, time; time.sleep(1); print('here'); os.stat(sys.argv[1] + '/x')"
    older = make_run(stuck, str(share)).start()
    make_hang(share, stuck=True)
    older.wait_for_log(0, b"here")
    rank = older.status()["ranks"][0]["pid"]
    time.sleep(0.5)  # until the question is taken, it can be taken back
    older.kill_supervisor_and_guard()
    wait_until(lambda: processes.process_table()[rank].uninterruptible)
    run = make_run("pass", state=older.folder / "state")
    run.change = {"lock": older.plan.master.lock}
    error = run.start_node(0)["error"]
    assert error["kind"] == "busy"
    assert f"processes of run {older.plan.run} are left: pid {rank} (" in error["message"]


def test_a_tool_of_the_driver_that_no_signal_ends_is_left_behind(
    tmp_path: Path, make_hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device").mkdir()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nread line < {tmp_path}/device/x\n")
    tool.chmod(0o755)
    make_hang(tmp_path / "device", stuck=True)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(release_check, "QUERY_SECONDS", 1.0)
    began = time.monotonic()
    assert release_check._nvidia() is None
    assert time.monotonic() - began < 20


def test_a_tool_that_answers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '4711, 71234 MiB, 00000000:18:00.0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert release_check.memory_holders() == {4711: "71234 MiB of GPU 00000000:18:00.0"}
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert release_check._nvidia() is None
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert release_check._nvidia() is None


def test_a_child_gives_its_result_or_its_failure() -> None:
    assert run_with_timeout(20, lambda: {"a": [1, None]}) == {"a": [1, None]}
    with pytest.raises(ChildProcessError, match="division"):
        run_with_timeout(20, lambda: 1 // 0)
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        run_with_timeout(0.2, lambda: time.sleep(300))


def test_a_dump_tells_of_a_rank_that_is_stuck_in_the_kernel(
    make_run: MakeRun, make_hang: Hang, tmp_path: Path
) -> None:
    (share := tmp_path / "share").mkdir()
    stuck = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
def read_shard():
    os.stat(sys.argv[1] + "/x")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
print("here", flush=True)
read_shard()
"""
    run = make_run(stuck, str(share), str(tmp_path / "go")).start()
    make_hang(share, stuck=True)
    (tmp_path / "go").touch()
    run.wait_for_log(0, b"here")
    rank = run.status()["ranks"][0]["pid"]
    wait_until(lambda: b"request_wait" in processes.read_proc(rank, "wchan"))
    os.kill(rank, signal.SIGUSR1)  # FUSE waits uninterruptibly from the first signal on
    wait_until(lambda: processes.process_table()[rank].uninterruptible)
    spy = find_py_spy()
    assert spy is not None
    for native in (False, True):
        words = {**run.where(), "tool": spy.words, "native": native}
        answer = run.call(0, "dump", words, spy.packed)[-1].head
        process = answer["dump"]["ranks"][0]["processes"][0]
        main = process["threads"][0]
        assert (process["state"], main["state"], process["source"]) == ("D", "D", "py-spy")
        assert main["frames"][0]["function"] == "read_shard"
        assert main["wait"] == "request_wait_answer"
