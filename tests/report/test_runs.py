"""The list of runs: what is left out where there is no room, and what never is."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from clusterctl.errors import NodeError
from clusterctl.report.console import Screen
from clusterctl.report.runs import show_runs
from clusterctl.verbs.runs.list_runs import ListedRun, RunList

ID = "a-cluster-with-long-name-20260101t000000-{}"


def a_run(number: str, name: str = "") -> ListedRun:
    return ListedRun(
        verified=True,
        run=ID.format(number),
        cluster="a-cluster-with-long-name",
        state="finished",
        began=time.time() - 90,
        nodes=tuple(f"gpu{n:02}" for n in range(1, 17)),
        command=("train.py", "--lr", "1e-4"),
        name=name,
    )


def shown(*runs: ListedRun, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    show_runs(Screen(console, console), RunList(runs=runs, errors=()))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, "run"),
        (60, "run state"),
        (72, "run state began"),
        (79, "run state began nodes"),
        (100, "run state began nodes name command"),
        (120, "run state began nodes name command"),
    ],
)
def test_columns_are_left_out_and_a_runs_id_is_whole(width: int, titles: str) -> None:
    rows = shown(a_run("aaaa", "best"), a_run("bbbb"), width=width).splitlines()
    assert rows[0].split() == titles.split()
    assert max(map(len, rows)) <= width
    if width > len(ID):
        assert [row.split()[0] for row in rows[1:]] == [ID.format("aaaa"), ID.format("bbbb")]
    else:
        assert "".join(row.strip() for row in rows[1:3]) == ID.format("aaaa")


def test_names_have_a_column_only_where_a_run_has_one() -> None:
    assert "name" not in shown(a_run("aaaa"), width=120).splitlines()[0]
    assert "name" in shown(a_run("aaaa", "best"), width=120).splitlines()[0]


def test_no_runs_print_nothing_but_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    show_runs(Screen(), RunList(runs=(), errors=()))
    assert capsys.readouterr() == ("", "no runs yet\n")
    unknown = NodeError("timeout", "connect", node="gpu2")
    show_runs(Screen(), RunList(runs=(), errors=(unknown,)))
    assert capsys.readouterr() == ("", "")


def test_the_command_is_shown_without_its_interpreter_and_a_refusal_as_one() -> None:
    command = ("/venv/bin/python3.11", "train.py", "--name", "two words")
    table = shown(replace(a_run("one1"), command=command, ended_by="busy"), width=200)
    assert "train.py --name 'two words'" in table
    assert "python3" not in table
    assert "refused (busy)" in table
    assert "bash run.sh" in shown(replace(a_run("two2"), command=("bash", "run.sh")), width=200)
