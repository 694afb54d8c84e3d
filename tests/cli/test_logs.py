"""The command line of `logs`: what is refused before a node is asked, and what is never lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import psutil
import pytest

from clusterctl.api.run import Run
from clusterctl.cli.runs import logs as module
from clusterctl.cli.shared.main import main
from clusterctl.transport.pool import Pool
from clusterctl.verbs.runs.records import Records
from tests.cli.runs import Project
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN, data, ended

TAILS = {
    "a": {"tail": [data(0, 0, b"one\ntwo\n\x1b[2J", time=1.0), ended("a")]},
    "b": {"tail": [data(1, 0, b"three\n", time=2.0), ended("b")]},
}
SILENT = {name: {"tail": [ended(name)]} for name in TAILS}

NUMBERED = """
import os, sys, time
def wait_for(part):
    while not os.path.exists(os.environ["GATE"] + str(part)):
        time.sleep(0.02)
rank, parts, lines = (int(os.environ[name]) for name in ("RANK", "PARTS", "LINES"))
for part in range(parts):
    wait_for(part)
    for n in range(part * lines, (part + 1) * lines):
        sys.stdout.write("%02d %010d |%s\\n" % (rank, n, "x" * (n % 160)))
    sys.stdout.flush()
wait_for(parts)
"""
BUSY = 600
"""Seconds that following may take on a busy machine."""
LINE_BYTES = 94.5
"""Of a line of those, on average."""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--grep", "Loss", "--rank", "0"], "--rank, --grep"),
        (["--since", "10m"], "--since"),
        (["-f"], "--follow"),
    ],
)
def test_whole_files_are_collected_or_none(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "--collect", "out", *words]) == 2
    assert f"expected it without {named}\n" in capsys.readouterr().err


def opener(pool: FakePool) -> Callable[[object], AbstractContextManager[Run]]:
    """Return what opens a run on these nodes."""
    run = Run(RUN, CLUSTER, pool=lambda: cast("Pool", pool), records=Records())
    return lambda _args: nullcontext(run)


@pytest.mark.parametrize("words", [[], ["-f"], ["--tail", "9"]])
def test_raw_prints_bytes_and_json_a_line_each_however_they_came(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(module, "open_run", opener(FakePool(CLUSTER, TAILS)))
    assert main(["logs", RUN, "--raw", *words]) == 0
    out = capsysbinary.readouterr().out.replace(b"\x1b[2J\nthree", b"\x1b[2Jthree")
    assert sorted(out) == sorted(b"one\ntwo\n\x1b[2Jthree\n")
    assert main(["logs", RUN, "--raw", "--json", *words]) == 0
    printed = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert {line["line"] for line in printed} == {"one", "two", "\x1b[2J", "three"}


def test_an_empty_log_is_told_from_an_answer_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "open_run", opener(FakePool(CLUSTER, TAILS)))
    assert main(["logs", RUN, "--grep", "never"]) == 0
    assert capsys.readouterr() == ("", "no line matches\n")
    assert main(["logs", RUN, "--since", "2100-01-01"]) == 0
    hint = capsys.readouterr().err.splitlines()[1]
    assert hint.startswith(f"hint: clusterctl logs {RUN} --timestamps --tail=1 shows when the last")
    assert "; this machine's clock is at 20" in hint
    assert main(["logs", RUN, "--grep", "never", "--json"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(module, "open_run", opener(FakePool(CLUSTER, SILENT)))
    assert main(["logs", RUN]) == 0
    assert capsys.readouterr() == ("", "nothing has been printed yet\n")
    monkeypatch.setattr(module, "open_run", opener(FakePool(CLUSTER, TAILS)))
    assert main(["logs", RUN, "--grep", "one"]) == 0
    assert "matches" not in capsys.readouterr().err


def test_leaving_a_followed_run_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "open_run", opener(FakePool(CLUSTER, {})))
    monkeypatch.setattr(Run, "_log_events", interrupted)
    assert main(["logs", "-f", RUN]) == 130
    assert capsys.readouterr().err == f"\nstopped following; {RUN} keeps running\n"
    assert main(["logs", RUN]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.netns
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("megabytes", "cuts"), [(3, 3), pytest.param(1000, 10, marks=pytest.mark.soak)]
)
def test_following_through_lost_connections_gives_each_line_once(
    project: Project, tmp_path: Path, megabytes: int, cuts: int
) -> None:
    lines = int(megabytes * 1e6 / LINE_BYTES / 3 / cuts)
    (project.folder / "numbered.py").write_text(NUMBERED)
    gate = f"{tmp_path.name}-gate"
    env = {"PARTS": cuts, "LINES": lines, "GATE": f"/shared/{gate}"}
    settings = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    words = ("--launcher", "direct", "--detach", "--no-check", *settings, "--", "numbered.py")
    started = project.run("launch", *words, seconds=BUSY)
    assert started.returncode == 0, started.stderr
    sink, told = tmp_path / "sink", tmp_path / "told"
    with sink.open("wb") as stdout, told.open("wb") as stderr:
        follower = project.start("logs", "-f", "--raw", stdout=stdout, stderr=stderr)
    until = time.monotonic() + BUSY
    for part in range(cuts):
        (project.sandbox.shared / f"{gate}{part}").touch()
        wanted = lines * 3 * LINE_BYTES * (part + 0.3)
        while sink.stat().st_size < wanted:
            assert follower.poll() is None, told.read_text()
            assert time.monotonic() < until, f"{sink.stat().st_size} of {wanted} bytes"
            time.sleep(0.02)
        cut(project, f"node{part % 3 + 1}")
        while told.read_text().count("connection lost") <= part:
            assert follower.poll() is None, told.read_text()
            assert time.monotonic() < until, told.read_text()
            time.sleep(0.02)
    (project.sandbox.shared / f"{gate}{cuts}").touch()
    assert follower.wait(BUSY) == 0, told.read_text()
    run = f"hosts/*/var-tmp/clusterctl-*/*/{started.stdout.strip()}/*/ranks/*.log"
    logs = {int(path.stem): path for path in project.sandbox.layout.root.glob(run)}
    assert sorted(logs) == [0, 1, 2]
    must_hold_each_line_once(sink, logs, count=lines * cuts)


def cut(project: Project, node: str) -> None:
    """Kill the server's side of the connections to a host."""
    sandbox = project.sandbox
    until = time.monotonic() + BUSY
    found: list[psutil.Process] = []
    while not found:
        assert time.monotonic() < until, f"nobody is connected to {node}"
        for pid in sandbox.backend.processes(sandbox.host(node)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                found += [process] if "@notty" in " ".join(process.cmdline()) else []
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
            process.kill()


def must_hold_each_line_once(sink: Path, logs: dict[int, Path], *, count: int) -> None:
    """Compare each rank's lines with its log on its host."""
    assert sink.stat().st_size == sum(path.stat().st_size for path in logs.values())
    for rank, path in logs.items():
        own, lines = hashlib.sha256(), 0
        with sink.open("rb") as stream:
            while some := stream.readlines(1 << 24):
                found = [line for line in some if line.startswith(b"%02d " % rank)]
                own.update(b"".join(found))
                lines += len(found)
        assert lines == count
        with path.open("rb") as stream:
            assert hashlib.file_digest(stream, "sha256").digest() == own.digest()


NCCL = """
import os, socket
name = os.environ["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname())
with open(name.replace("%p", str(os.getpid())), "w") as log:
    log.write(os.environ["RANK"] + " NCCL INFO NET/Socket\\n")
"""


@pytest.mark.netns
def test_nccls_own_logs_are_collected_with_the_others(project: Project, tmp_path: Path) -> None:
    (project.folder / "nccl.py").write_text(NCCL)
    ended = project.run("launch", "--launcher", "direct", "--debug", "--", "nccl.py")
    assert ended.returncode == 0, ended.stderr
    assert project.run("logs", "--collect", str(tmp_path / "out")).returncode == 0
    found = {
        path.parts[-3]: path.read_text() for path in (tmp_path / "out").glob("*/nccl/node*.log")
    }
    assert found == {f"node{rank + 1}": f"{rank} NCCL INFO NET/Socket\n" for rank in range(3)}
