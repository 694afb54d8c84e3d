"""What Ctrl-C asks of a person who follows a run, on a real terminal."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.cli import following
from clusterctl.report.launch_json import Program
from clusterctl.transport.fake import FakePool
from clusterctl.transport.interface import Reply
from clusterctl.verbs import follow
from clusterctl.verbs.launch import Launched
from clusterctl.verbs.records import Records, RunRecord
from tests.verbs.runs import CLUSTER, RUN
from tests.verbs.test_gathering import PLAN


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Be on a terminal; what is written to the descriptor is typed."""
    typed, slave = pty.openpty()
    with open(slave, closefd=False) as stdin, open(slave, "w", closefd=False) as stderr:
        # Not those of `sys`, which pytest replaces between this and the test.
        monkeypatch.setattr(following, "sys", SimpleNamespace(stdin=stdin, stderr=stderr))
        yield typed
    os.close(typed)
    os.close(slave)


@pytest.mark.parametrize(
    ("answer", "wish"), [("\n", "leave"), ("l\n", "leave"), ("s\n", "stop"), ("f\n", "stay")]
)
def test_an_answer_is_taken(terminal: int, answer: str, wish: str) -> None:
    os.write(terminal, answer.encode())
    assert following._ask() == wish


@pytest.mark.usefixtures("terminal")
def test_without_an_answer_following_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ANSWER_SECONDS", 0.05)
    assert following._ask() == "stay"


def test_a_controller_that_loses_all_nodes_leaves_the_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "LONGEST_WAIT", 0.05)
    monkeypatch.setattr(follow, "BACKOFF", (0.01,))
    silent = {
        node.name: {"tail": Reply(node=node.name, state="unreachable", phase="connect")}
        for node in CLUSTER.nodes
    }
    records, record = Records(tmp_path), RunRecord(run=RUN, began=1.0, cluster=CLUSTER)
    records.write(record)
    launched = Launched(plan=PLAN, cluster=CLUSTER, record=record)
    pool = FakePool(CLUSTER, silent)
    code = following.follow_run(launched, pool, records, Program())  # type: ignore[arg-type]
    assert code == 130
    assert records.end(record) is None
    assert f"{RUN} goes on" in capsys.readouterr().err
