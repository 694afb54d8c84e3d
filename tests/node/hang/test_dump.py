"""Dumps of real runs: what py-spy tells, what the kernel tells, and what each could not see."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.cluster import Hang, Job, Stop
from clusterctl.model.answers import DumpAnswer
from clusterctl.model.from_json import from_json
from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.hang import py_spy, stacks, tools
from clusterctl.node.hang import take as module
from clusterctl.node.hang.dump import dump
from clusterctl.node.hang.saved import KEPT, newest_dump, save_dump
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.verbs.dump.own_py_spy import OwnPySpy, find_py_spy
from clusterctl.wire import to_json
from tests.node.conftest import Run
from tests.waiting import BUSY, wait_until

MakeRun = Callable[..., Run]
Head = dict[str, Any]

NOBODY = 65534
WAITS = """
import os, threading, time
def train_step(secret):
    print("here", flush=True)
    time.sleep(600)
def load(index):
    os.read(pipe[0], 1)
pipe = os.pipe()
threading.Thread(target=load, args=(7,), daemon=True).start()
if worker := os.fork():
    train_step("hunter2")
load(8)
"""


@pytest.fixture
def own() -> OwnPySpy:
    found = find_py_spy()
    assert found is not None, "py-spy is a dependency"
    return found


def asked(run: Run, own: OwnPySpy | None, **args: object) -> Head:
    """Return a node's answer to `dump`, as the controller asks."""
    words = {**run.where(), **args, "tool": own.words if own else None}
    answer = run.call(0, "dump", words)[-1].head
    if answer.get("needs_tool"):
        assert own
        answer = run.call(0, "dump", words, own.packed)[-1].head
    assert "error" not in answer, answer
    from_json(DumpAnswer, answer, "")
    return answer


def functions(process: Head, thread: int = 0) -> list[str]:
    return [frame["function"] for frame in process["threads"][thread]["frames"]]


def test_py_spy_is_sent_once_and_tells_where_a_rank_and_its_children_are(
    make_run: MakeRun, own: OwnPySpy
) -> None:
    began = time.time()
    run = make_run(WAITS).start()
    run.wait_for_log(0, b"here")
    words = {**run.where(), "tool": own.words}
    assert asked(run, own, kept=True)["dump"] is None, "nothing is taken for it"
    assert run.call(0, "dump", words)[-1].head["needs_tool"]
    answer = asked(run, own)
    assert answer["state"] == "running"
    assert answer["note"] == ""
    (rank,) = answer["dump"]["ranks"]
    assert (rank["rank"], rank["ended"]) == (0, False)
    assert (rank["quiet_s"] or 0.0) <= time.time() - began
    assert rank["printed_s"] >= 0
    main, worker = rank["processes"]
    assert (main["source"], main["missing"]) == ("py-spy", "")
    assert functions(main) == ["train_step", "<module>"]
    assert "nanosleep" in main["threads"][0]["wait"]
    assert functions(main, 1)[0] == "load"
    assert functions(worker)[0] == "load"
    assert "hunter2" not in json.dumps(answer)
    assert not run.call(0, "dump", words)[-1].head.get("needs_tool"), "it is kept"
    kept = Path(run.paths().tools) / (tools.PREFIX + own.words["hash"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert list(Path(run.paths().hang).iterdir()) == [], "no answer is left"


def test_py_spy_can_be_kept_for_the_nodes_own_looks(make_run: MakeRun, own: OwnPySpy) -> None:
    run = make_run(WAITS).start()
    run.wait_for_log(0, b"here")
    words = {**run.where(), "tool": own.words, "store": True}
    assert run.call(0, "dump", words)[-1].head["needs_tool"]
    for body in (own.packed, b""):
        answer = run.call(0, "dump", words, body)[-1].head
        assert (answer["note"], answer.get("dump")) == ("", None)
    assert tools.has_tool(run.paths(), own.words["hash"])
    assert not Path(run.paths().hang).exists(), "no stack was taken"


def test_locals_are_told_only_if_asked_for_and_of_the_ranks_that_are_wanted(
    make_run: MakeRun, own: OwnPySpy
) -> None:
    run = make_run(WAITS).start()
    run.wait_for_log(0, b"here")
    (rank,) = asked(run, own, locals=True)["dump"]["ranks"]
    assert 'secret="hunter2"' in rank["processes"][0]["threads"][0]["frames"][0]["locals"]
    assert asked(run, own, only=[3])["dump"]["ranks"] == []


def test_a_stopped_rank_tells_its_stack_and_stays_stopped(make_run: MakeRun, own: OwnPySpy) -> None:
    run = make_run(WAITS).start()
    run.wait_for_log(0, b"here")
    pid = run.status()["ranks"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    for native in (False, True):
        process = asked(run, own, native=native)["dump"]["ranks"][0]["processes"][0]
        assert process["state"] == "T"
        assert functions(process) == ["train_step", "<module>"]
        assert ("native" in process["missing"]) is native
        assert processes.process_table()[pid].state == "T"


def test_without_py_spy_the_kernel_tells_and_what_is_missing_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(WAITS).start()
    run.wait_for_log(0, b"here")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    # A supervisor of an earlier version knows no such question: this process takes the dump.
    monkeypatch.setattr(run_lock, "query", lambda *_, **__: {"error": "no such question"})
    channel: CallChannel = None  # type: ignore[assignment]  # it is not used
    head = dump({**run.where(), "tool": {"hash": "0", "machine": "s390x"}}, b"", channel).head
    assert "py-spy for s390x does not run here" in head["note"]
    process = head["dump"]["ranks"][0]["processes"][0]
    assert process["source"] == "kernel"
    assert process["missing"] == "its Python stack: py-spy is not on this node"
    assert process["threads"][0]["wait"]


def test_a_run_that_is_over_tells_the_newest_dump_that_it_kept(
    make_run: MakeRun, own: OwnPySpy
) -> None:
    run = make_run("pass").start()
    run.ended()
    wait_until(lambda: Path(run.paths().end).exists())
    assert asked(run, own)["dump"] is None
    for number in range(KEPT + 3):
        known = {"run": run.plan.run, "node": run.names[0], "time": number, "ranks": []}
        save_dump(run.paths(), known)
    answer = asked(run, own)
    assert (answer["state"], answer["dump"]["time"]) == ("finished", KEPT + 2)
    assert asked(run, own, kept=True) == answer
    kept = sorted(Path(run.paths().hang).iterdir())
    assert len(kept) == KEPT
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_a_damaged_dump_gives_way_to_the_one_before(tmp_path: Path) -> None:
    paths = NodePaths(str(tmp_path))
    assert newest_dump(paths) == {}
    save_dump(paths, {"time": 1})
    Path(save_dump(paths, {"time": 2})).write_text('{"time": 2')
    assert newest_dump(paths) == {"time": 1}


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    folder = tmp_path / "state" / "cluster" / "run" / "node"
    folder.mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    return NodePaths(str(folder))


def test_a_tool_is_used_only_while_it_has_its_hash(paths: NodePaths) -> None:
    program = b"#!/bin/sh\nexit 0\n"
    digest = hashlib.sha256(program).hexdigest()
    with pytest.raises(tools.WrongToolError):
        tools.keep_tool(paths, digest, program + b"#")
    assert tools.find_tool(paths, []) == (None, "py-spy is not on this node")
    tools.keep_tool(paths, digest, program)
    path, problem = tools.find_tool(paths, [])
    assert path is not None
    assert problem == ""
    assert tools.has_tool(paths, digest)
    Path(path).write_bytes(program + b"rm -rf /\n")
    assert tools.find_tool(paths, [])[0] is None
    assert not tools.has_tool(paths, digest), "it is sent again"
    tools.keep_tool(paths, digest, program)
    Path(path).parent.chmod(0o777)
    assert not tools.has_tool(paths, digest), "another user may have put it there"


def test_who_only_asks_for_a_dump_imports_nothing_that_takes_stacks() -> None:
    also = "clusterctl.node.run_lock, clusterctl.node.run.processes.processes"
    code = f"import sys, clusterctl.node.hang.dump, {also}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    slow = {"hashlib", "shutil", "ctypes", "json", "typing", "signal"}
    assert not slow & {*done.stdout.decode().split()}


def test_a_new_version_of_a_tool_replaces_the_old_one(paths: NodePaths) -> None:
    for program in (b"one", b"two"):
        tools.keep_tool(paths, hashlib.sha256(program).hexdigest(), program)
    path, _ = tools.find_tool(paths, [])
    assert path is not None
    assert Path(path).read_bytes() == b"two"
    assert len(list(Path(path).parent.iterdir())) == 1


def test_a_tool_beside_the_jobs_interpreter_serves_too(paths: NodePaths, tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\n")
    (tmp_path / "py-spy").chmod(0o755)
    found = tools.find_tool(paths, ["", "train.py", str(tmp_path / "python")])
    assert found == (str(tmp_path / "py-spy"), "")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "printf 'Error: It failed\\n\\nCaused by:\\n 0: no\\n' >&2; exit 1",
            "py-spy: It failed: no",
        ),
        ("exec sleep 600", "py-spy did not end in time"),
        ("echo '[{\"nothing\": 1}]'", "py-spy failed"),
    ],
)
def test_why_a_tool_tells_nothing(tmp_path: Path, script: str, why: str) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    until = time.monotonic() + (0.5 if "sleep" in script else 60)
    pid = os.getpid()
    found, problems = py_spy.read_stacks(str(tool), {pid: "S"}, py_spy.Wanted(), until)
    assert found == {}
    assert problems == {pid: why}


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_user_may_not_read_anothers_process_and_learns_why() -> None:
    pid = os.getpid()

    def look() -> object:
        os.setgroups([])
        os.setuid(NOBODY)
        until = time.monotonic() + BUSY
        return py_spy.read_stacks("/bin/false", {pid: "S"}, py_spy.Wanted(), until)

    found, problems = run_with_timeout(BUSY, look)
    assert found == {}
    assert problems[str(pid)].startswith("it runs as root: only that user and root")


def test_who_may_not_read_a_process_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("2\n")
    monkeypatch.setattr(py_spy, "_YAMA", str(scope))
    assert "kernel.yama.ptrace_scope is 2" in py_spy._forbidden(os.getpid())
    scope.write_text("0\n")
    assert "the kernel does not let this user" in py_spy._forbidden(os.getpid())
    assert py_spy._forbidden(os.getpid()).endswith(
        "only the program itself can print it (faulthandler)"
    )
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert "only that user and root" in py_spy._forbidden(os.getpid())


def test_a_dump_that_is_too_large_keeps_the_main_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "BYTES_LIMIT", 200)
    threads = [{"id": number, "frames": []} for number in range(20)]
    full = {"ranks": [{"processes": [{"missing": "", "threads": threads}]}]}
    (process,) = stacks._bounded(full)["ranks"][0]["processes"]
    assert [thread["id"] for thread in process["threads"]] == [0]
    assert process["missing"] == "other threads: the dump is too large"


def test_a_dump_that_is_still_too_large_has_no_values() -> None:
    frame = {"function": "f", "file": "t.py", "line": 1, "locals": ["x=" + 10_000 * "y"]}
    processes: list[Head] = [
        {"missing": "", "threads": [{"id": 1, "frames": [dict(frame) for _ in range(100)]}]}
        for _ in range(10)
    ]
    found = stacks._bounded({"ranks": [{"processes": processes, "collectives": []}]})
    assert len(to_json(found)) < stacks.BYTES_LIMIT
    (first, *_), frames = found["ranks"][0]["processes"], processes[0]["threads"][0]["frames"]
    assert first["missing"].startswith("values, outer frames")
    assert [one["locals"] for one in frames] == [[]] * stacks.FEW_FRAMES


def test_an_answer_that_nobody_took_is_removed_by_a_later_one(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "take", lambda *_: {"ranks": []})
    names = [module.ANSWER + each for each in ("old", "new")]
    module.take_to_file(paths, {"answer": "old"}, [])
    os.utime(Path(paths.hang, names[0]), (0, 0))
    module.take_to_file(paths, {"answer": "new"}, [])
    assert [path.name for path in Path(paths.hang).iterdir()] == names[1:]


def test_stacks_that_were_kept_as_a_run_became_hung_are_not_taken_twice(
    make_run: MakeRun, own: OwnPySpy
) -> None:
    run = make_run(WAITS, job=Job(hang=Hang(after=3))).start()
    run.wait_for_log(0, b"here")
    asked(run, own, store=True)
    kept = Path(run.paths().hang)
    wait_until(lambda: run.status()["hung"])
    answer = asked(run, own, keep=True, steady=True)
    assert [one.name for one in kept.iterdir()] == ["1.json"]
    assert answer["dump"] == json.loads((kept / "1.json").read_text())
    assert answer["state"] == "running"
    assert asked(run, own)["dump"] != answer["dump"], "who types dump gets what is there now"


def test_stacks_that_were_kept_without_py_spy_are_taken_again(
    make_run: MakeRun, own: OwnPySpy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(Path(sys.executable).resolve()))
    run = make_run(WAITS, job=Job(hang=Hang(after=3))).start()
    run.wait_for_log(0, b"here")
    kept = Path(run.paths().hang)
    wait_until((kept / "1.json").exists)
    first = json.loads((kept / "1.json").read_text())
    if not any(one["missing"] for one in first["ranks"][0]["processes"]):
        pytest.skip("py-spy is next to the interpreter of the tests")
    answer = asked(run, own, keep=True, steady=True)
    assert functions(answer["dump"]["ranks"][0]["processes"][0])
    assert {one.name for one in kept.iterdir()} == {"1.json", "2.json"}


IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(600)
"""


def test_stacks_of_a_run_that_ends_replace_none_of_when_it_stood_still(
    make_run: MakeRun, own: OwnPySpy
) -> None:
    run = make_run(IGNORES_TERM, job=Job(stop=Stop(grace=600))).start()
    run.wait_for_log(0, b"here")
    assert asked(run, own, keep=True, steady=True)["state"] == "running"
    os.kill(run.pid_of_supervisor(), signal.SIGTERM)
    wait_until(lambda: run.status()["state"] == "stopping")
    assert asked(run, own, keep=True, steady=True)["state"] == "stopping"
    assert [one.name for one in Path(run.paths().hang).iterdir()] == ["1.json"]
    asked(run, own, keep=True)
    assert {one.name for one in Path(run.paths().hang).iterdir()} == {"1.json", "2.json"}
