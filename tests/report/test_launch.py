"""How a run ended, as one line says it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from clusterctl.report.console import Screen, counted
from clusterctl.report.launch import Person
from clusterctl.report.lines import Prefixed
from clusterctl.verbs.outcome import Ended
from clusterctl.verbs.runview import NodeAnswer, RunView
from tests.verbs.runs import CLUSTER, RUN, part


@pytest.mark.parametrize(
    ("state", "by", "line"),
    [
        ("finished", "job", "finished (ended by job)"),
        ("failed", "start-timeout", "failed (ended by start-timeout)"),
        ("failed", "unknown", "failed (no node could say how)"),
        ("lost", "lost", "lost"),
        ("stopped", "stop", "stopped"),
    ],
)
def test_who_ended_it_is_said_once(state: str, by: str, line: str) -> None:
    end = {"state": state, "by": {"job": "rank"}.get(by, by)}
    node = NodeAnswer(node=CLUSTER.node("a"), part=part("a", state, end=end))
    view = RunView(run=RUN, cluster="lab", nodes=(node,))
    console = Console(file=(stream := io.StringIO()), width=100)
    person = Person(screen=Screen(console, console), lines=Prefixed(stream))
    person.ended(Ended(view=view, exit_code=1, ended_by=by))
    assert stream.getvalue() == f"{RUN}: {line}\n"


def test_one_of_a_thing_is_no_plural() -> None:
    assert (counted(1, "file"), counted(0, "file"), counted(2, "check")) == (
        "1 file",
        "0 files",
        "2 checks",
    )
