"""What Ctrl-C asks of a person who follows a run, on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterctl.api.run import Run
from clusterctl.cli.shared import agree, following
from clusterctl.errors import NodeError
from clusterctl.report.launch import JsonDisplay
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from clusterctl.verbs import follow
from clusterctl.verbs.runs.records import Records, RunRecord
from tests.cli.runs import JOB, Project, signal_all
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN
from tests.waiting import BUSY


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Be on a terminal; what is written to the descriptor is typed."""
    typed, slave = pty.openpty()
    with open(slave, closefd=False) as stdin, open(slave, "w", closefd=False) as stderr:
        # Not those of `sys`, which pytest replaces between this and the test.
        for module in (agree, following):
            monkeypatch.setattr(module, "sys", SimpleNamespace(stdin=stdin, stderr=stderr))
        yield typed
    os.close(typed)
    os.close(slave)


@pytest.mark.parametrize(
    ("answer", "wish"), [("\n", "leave"), ("l\n", "leave"), ("s\n", "stop"), ("f\n", "stay")]
)
def test_an_answer_is_taken(terminal: int, answer: str, wish: str) -> None:
    os.write(terminal, answer.encode())
    assert following.ask() == wish


@pytest.mark.usefixtures("terminal")
def test_without_an_answer_following_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "QUESTION_SECONDS", 0.05)
    assert following.ask() == "stay"


def test_a_controller_that_loses_all_nodes_leaves_the_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "LONGEST_WAIT", 0.05)
    monkeypatch.setattr(follow, "BACKOFF", (0.01,))
    silent = {
        node.name: {"tail": Reply.failed(node.name, NodeError("unreachable", "connect"))}
        for node in CLUSTER.nodes
    }
    records, record = Records(tmp_path), RunRecord(run=RUN, began=1.0, cluster=CLUSTER)
    records.write(record)
    pool = cast("Pool", FakePool(CLUSTER, silent))
    run = Run(RUN, CLUSTER, pool=lambda: pool, records=records, record=record, plan=PLAN)
    code = following.follow_run(run, JsonDisplay())
    assert code == 130
    assert records.end(record) is None
    assert f"{RUN} keeps running" in capsys.readouterr().err


IGNORES_TERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + JOB


def read_until(terminal: int, seen: str, wanted: str) -> str:
    """Read what is written to a terminal until it contains some text; return all of it."""
    until = time.monotonic() + BUSY
    while wanted not in seen:
        assert time.monotonic() < until, f"no {wanted!r} in {seen}"
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 4096).decode()
    return seen


@pytest.mark.netns
def test_a_second_ctrl_c_during_a_stop_ends_it_and_names_the_command_that_stops_the_run(
    project: Project,
) -> None:
    (project.folder / "stubborn.py").write_text(IGNORES_TERM)
    typed, slave = pty.openpty()
    words = ("launch", "--launcher", "direct", "--env", "STEPS=100000", "--", "stubborn.py")
    argv = [sys.executable, "-u", "-m", "clusterctl", *words]
    process = subprocess.Popen(
        project.sandbox.command(argv, cwd=project.folder),
        env=project.sandbox.environment() | project.settings(None) | {"COLUMNS": "500"},
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    )
    project.started.append(process)
    os.close(slave)
    assert process.stdout is not None
    next(line for line in process.stdout if "all met" in line)
    signal_all(process, signal.SIGINT)
    seen = read_until(typed, "", "keep [f]ollowing?")
    os.write(typed, b"s\n")
    seen = read_until(typed, seen, "node1: asking")
    signal_all(process, signal.SIGINT)
    seen = read_until(typed, seen, "hint: clusterctl stop")
    process.communicate(timeout=BUSY)
    os.close(typed)
    run = project.status()["run"]
    assert process.returncode == 130
    assert f"{run}: interrupted while it was stopped; what is left is unknown" in seen
    assert f"hint: clusterctl stop {run}" in seen
    assert "Traceback" not in seen
    stopped = project.run("stop", run, "--grace", "0")
    assert stopped.returncode == 0, stopped.stderr
