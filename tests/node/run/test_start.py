"""`start`: what reaches the job, what stays behind, and what is refused."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.cluster import Job
from clusterctl.node.agent import loader
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations import start
from clusterctl.node.run.processes import processes
from clusterctl.wire import Message
from tests.node.conftest import Head, Run, environment_of
from tests.node.test_handover import altered
from tests.waiting import wait_until

MakeRun = Callable[..., Run]

LINK = CallChannel(io.BytesIO(), -1)

SLEEP = "import time; print('here'); time.sleep(300)"

EVIL = [
    "two words", "it's", 'a "quote"', "$HOME", "`id`", "a;b|c&d", "*.py", "line\nbreak", "",
    '{"a": ["b"]}', "naïve ☃", "\\back\\slash", "--flag=x y", "\t", "bytes \udcff\udcfe",
]  # fmt: skip


def test_arguments_and_environment_arrive_byte_for_byte(make_run: MakeRun) -> None:
    env = tuple((f"EVIL_{n}", value) for n, value in enumerate(EVIL))
    report = (
        "import os,json,sys;"
        "print(json.dumps([[os.fsencode(a).hex() for a in sys.argv[1:]],"
        "{k: os.fsencode(v).hex() for k, v in os.environ.items()}]))"
    )
    run = make_run(report, *EVIL, job=Job(env=env))
    run.secrets = {"SECRET": EVIL[-1]}
    run.start()
    assert run.ended()["state"] == "finished"
    argv, environment = json.loads(run.log(0))
    wanted = [word.encode("utf-8", "surrogateescape").hex() for word in EVIL]
    assert argv == wanted
    assert [environment[f"EVIL_{n}"] for n in range(len(EVIL))] == wanted
    assert environment["SECRET"] == wanted[-1]
    assert bytes.fromhex(environment["CLUSTERCTL_RUN_ID"]).decode() == run.plan.run


def test_a_secret_is_in_no_file_and_in_no_argument_list(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    run.secrets = {"HF_TOKEN": "hf_geheim_0815"}
    run.start()
    run.wait_for_log(0, b"here")
    secrets = [b"hf_geheim_0815", run.identity.token.encode(), run.identity.key.encode()[60:120]]
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert not [secret for secret in secrets if secret in path.read_bytes()], path
    for process in run._living():
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert not [secret for secret in secrets if secret in words]


StartHere = Callable[[Head, bytes], Message]


@pytest.fixture
def start_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartHere]:
    """Start runs from this process, so that a test can interfere; the run is over afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def keep(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **options))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", keep)
        yield lambda args, body: start.start(args, body, LINK)
    for process in started:
        process.wait(60)


@pytest.mark.parametrize("when", ["before its files", "after its files"])
def test_a_stop_amid_a_start_keeps_it_from_starting(
    make_run: MakeRun, start_here: StartHere, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """There is no process yet that it could find."""
    run, write_files = make_run(SLEEP), start.write_files

    def write_slowly(paths: NodePaths, job: NodeJob) -> None:
        if when == "after its files":
            write_files(paths, job)
        assert run.stop(grace=0)["gone"]
        if when == "before its files":
            write_files(paths, job)

    monkeypatch.setattr(start, "write_files", write_slowly)
    with pytest.raises(OperationError, match="stopped before it started"):
        start_here(*run.start_request(0))
    assert not run.left()
    assert not Path(run.paths().folder).exists()


def test_a_long_run_keeps_its_files_from_cleaners(
    make_run: MakeRun, start_here: StartHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are restarted through the agent in its folder."""
    often = altered(
        "clusterctl.node.supervisor.housekeeping",
        b"FRESH_SECONDS = 86400.0",
        b"FRESH_SECONDS = 0.2",
    )
    monkeypatch.setattr(loader, "program", lambda **_: often)
    run = make_run(SLEEP)
    start_here(*run.start_request(0))
    run.wait_for_log(0, b"here")
    folder = Path(run.paths().folder)
    for path in (run.paths().agent, run.paths().job, folder / "ranks" / "0.log"):
        os.utime(path, (0, 0))

    def old(how: str) -> str:
        words = ["find", str(folder), "-type", "f", how, "+30"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    wait_until(lambda: old("-atime") == "")
    assert old("-mtime").split() == [str(folder / "ranks" / "0.log")], "when it last printed"
    assert run.stop(grace=0)["gone"]


def test_the_run_outlives_the_call_in_a_session_of_its_own(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    node = run.asked_status()
    assert [rank["rank"] for rank in node["usage"]["ranks"]] == [0]
    supervisor = node["supervisor"]["pid"]
    assert node["state"] == "running"
    assert node["supervisor"]["alive"]
    assert os.getsid(supervisor) != os.getsid(0)
    assert os.getsid(node["ranks"][0]["pid"]) == os.getsid(supervisor)
    for number in (0, 1, 2):
        assert "pipe:" not in str(Path(f"/proc/{supervisor}/fd/{number}").readlink())


def test_the_folder_is_for_this_user_alone(make_run: MakeRun) -> None:
    run = make_run("pass").start()
    folder = Path(run.paths().folder)
    for each in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    run.ended()
    assert all(stat.S_IMODE(p.stat().st_mode) & 0o077 == 0 for p in folder.rglob("*"))


def test_a_rank_gets_what_torch_reads(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2, procs=2).start()
    run.wait_for_log(3, b"here", n=1)
    environment = environment_of(run.status(1)["ranks"][1]["pid"])
    port = str(run.plan.master_port)
    wanted = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "NODE_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "CUDA_VISIBLE_DEVICES": "", "PWD": str(run.workdir), "ROLE_RANK": "3",
    }  # fmt: skip
    assert {k: environment[k.encode()].decode() for k in wanted} == wanted
    assert not [name for name in environment if name.startswith(b"TORCHELASTIC")]
    assert environment[b"PATH"].startswith(os.fsencode(Path(run.plan.master.argv[0]).parent))


def test_env_init_changes_are_kept_and_what_was_asked_for_wins(make_run: MakeRun) -> None:
    line = "echo noise; export FROM_INIT='a b' ASKED=init PYTHONUNBUFFERED=0; unset NOT_THERE"
    run = make_run(SLEEP, job=Job(env_init=line, env=(("ASKED", "job"),))).start()
    run.wait_for_log(0, b"here")
    environment = environment_of(run.status()["ranks"][0]["pid"])
    assert environment[b"FROM_INIT"] == b"a b"
    assert environment[b"ASKED"] == b"job"
    assert environment[b"PYTHONUNBUFFERED"] == b"0"


def test_a_failing_env_init_says_what_it_said(make_run: MakeRun) -> None:
    run = make_run(SLEEP, job=Job(env_init="echo no such module >&2; false"))
    error = run.start_node(0)["error"]
    assert error["kind"] == "env-init"
    assert "exit code 1" in error["message"]
    assert "no such module" in error["message"]
    assert not Path(run.paths().folder).exists()


def test_a_second_start_is_refused_with_the_holders_name(make_run: MakeRun) -> None:
    first = make_run(SLEEP).start()
    second = make_run(SLEEP)
    second.change = {"lock": first.plan.master.lock}
    error = second.start_node(0)["error"]
    assert error["kind"] == "busy"
    assert error["holder"]["run"] == first.plan.run
    assert first.plan.run in error["message"]
    assert error["hint"].startswith(f"clusterctl status {first.plan.run} shows it")
    assert not Path(second.paths().folder).exists()
    first.stop(grace=0)
    assert "error" not in second.start_node(0)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"argv": ["no-such-program"]}, "exec", "command not found: no-such-program (PATH is "),
        ({"argv": ["./no/such"]}, "exec", "command not found: ./no/such"),
        ({"argv": ["/etc/passwd"]}, "exec", "not a program that this user may run"),
        ({"argv": ["/etc"]}, "exec", "/etc is a folder, not a program"),
        ({"workdir": "/no/such/folder"}, "workdir", "/no/such/folder is not a folder"),
        ({"workdir": "/etc/passwd"}, "workdir", "is not a folder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_left(
    make_run: MakeRun, change: dict[str, object], kind: str, words: str
) -> None:
    run = make_run(SLEEP)
    run.change = change
    error = run.start_node(0)["error"]
    assert error["kind"] == kind
    assert words in error["message"]
    assert error["hint"]
    assert not Path(run.paths().folder).exists()


def test_code_of_a_sync_that_was_cut_off_is_run_only_by_force(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    (run.workdir / ".clusterctl").mkdir()
    manifest = run.workdir / ".clusterctl" / "manifest.json"
    manifest.write_text(json.dumps({"schema": 1, "tree": None, "files": {}}))
    error = run.start_node(0)["error"]
    assert (error["kind"], error["hint"].split(",")[0]) == ("sync", "clusterctl sync")
    assert f"the last sync of workdir {run.workdir} did not finish" in error["message"]
    assert not Path(run.paths().folder).exists()
    assert "error" not in run.start_node(0, forces=True)


def test_a_script_in_workdir_is_named_with_its_folder(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    (run.workdir / "run.sh").write_text("exit 0\n")
    run.change = {"argv": ["run.sh"]}
    error = run.start_node(0)["error"]
    assert error["message"].startswith("command not found: run.sh (PATH is ")
    assert error["hint"] == "it is in workdir: write ./run.sh, or launch -- bash ./run.sh"


def test_a_script_that_is_not_executable_says_how_to_run_it(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    run.change = {"argv": ["./train it.sh"]}
    (run.workdir / "train it.sh").write_text("sleep 1\n")
    assert (
        run.start_node(0)["error"]["hint"]
        == "chmod +x './train it.sh', or launch -- bash './train it.sh'"
    )


def test_a_start_that_fails_late_leaves_no_folder_either(make_run: MakeRun) -> None:
    run = make_run(SLEEP, nodes=2)
    run.change = {"link": {}}
    error = run.start_node(0)["error"]
    assert error["kind"] == "died"
    assert "KeyError" in error["message"]
    assert not Path(run.paths().folder).exists()
    certificate = run.identity.certificate
    run.change = {
        "link": {
            "address": "203.0.113.9", "port": 0, "certificate": certificate, "lost_after": 9,
        }
    }  # fmt: skip
    error = run.start_node(0)["error"]
    assert error["kind"] == "link"
    assert "cannot listen on 203.0.113.9:0: Cannot assign requested address" in error["message"]
    assert not Path(run.paths().folder).exists()


def test_a_start_that_breaks_leaves_no_folder_either(make_run: MakeRun) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run = make_run(SLEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "start_detached", broken)
        patch.setattr(run, "call", lambda _n, _op, args, body: [start.start(args, body, LINK)])
        with pytest.raises(OSError, match="Too many open files"):
            run.start_node(0)
    assert not Path(run.paths().folder).exists()


def test_the_folder_is_locked_against_cleaners(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    descriptor = os.open(run.paths().folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_state_folder_that_others_may_write_is_refused(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    state = run.folder / "state"
    state.chmod(0o777)
    error = run.start_node(0)["error"]
    assert error["kind"] == "state-folder"
    assert "mode 777" in error["message"]
    assert error["hint"] == f"chmod -R go-w {state}"


def test_a_script_without_a_first_line_is_named_in_the_ranks_log(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    script = run.workdir / "train.sh"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    run.change = {"argv": ["./train.sh"]}
    run.start()
    node = run.ended()
    assert node["end"]["exit_code"] == 126
    assert b"clusterctl: cannot run ./train.sh: Exec format error" in run.log(0)


def test_a_signal_that_python_ignores_has_its_default_again(make_run: MakeRun) -> None:
    run = make_run(SLEEP)
    run.change = {"argv": ["grep", "SigIgn", "/proc/self/status"]}
    run.start()
    assert run.ended()["state"] == "finished"
    ignored = int(run.log(0).split()[1], 16)
    assert (
        not ignored & (1 << signal.SIGRTMIN - 1) - 1 & ~(3 << 31)
    )  # 32 and 33 are the C library's


def test_the_agent_that_looks_after_the_run_is_in_its_folder(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    words = processes.command_of(run.pid_of_supervisor())
    assert run.paths().agent in words
    assert "clusterctl.node.supervisor.guard:main" in words


def test_the_record_of_a_launch_is_given_back_as_it_was(make_run: MakeRun) -> None:
    run = make_run("")
    launched = {"record": '{"command": "it\'s \\u00fc"}', "proof": "ab" * 32}
    run.change = {"launched": launched}
    run.start().ended()
    where = {"cluster": "test", "state": str(run.folder / "state"), "launched": [run.plan.run]}
    (found,) = run.call(0, "runs", where)[-1].head["runs"]
    assert found["launched"] == launched


def test_the_runs_that_a_node_keeps_are_listed(make_run: MakeRun) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    where = {"cluster": "test", "state": str(run.folder / "state")}
    (found,) = run.call(0, "runs", where)[-1].head["runs"]
    assert (found["run"], found["state"]) == (run.plan.run, "running")
    assert "launched" not in found
    error = run.call(0, "status", {**run.where(), "run": "test-other"})[-1].head["error"]
    assert error["kind"] == "no-run"


def test_a_container_client_is_refused_since_its_container_would_live_on(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = make_run(SLEEP)
    run.change = {"argv": ["docker", "run", "--gpus=all", "image"]}
    error = run.start_node(0)["error"]
    assert error["kind"] == "exec"
    assert "docker is only a client" in error["message"]
    assert "wrap: [docker, run, IMAGE]" in error["hint"]
