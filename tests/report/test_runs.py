"""The list of runs: what is left out where there is no room, and what never is."""

from __future__ import annotations

import datetime as dt
import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clusterctl.errors import NodeError
from clusterctl.model.node_run import Resumed
from clusterctl.report.console import Screen
from clusterctl.report.runs import shorten, show_pruned, show_run, show_runs
from clusterctl.verbs.runs.list_runs import ListedRun, RunList
from clusterctl.verbs.runs.one_run import one_run
from clusterctl.verbs.runs.prune import NAMED, Kept, Pruned
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_status import view_of
from tests.verbs.run_answers import CLUSTER, RUN, node_run

ID = "a-cluster-with-long-name-20260101t000000-{}"


def a_run(number: str, name: str = "", **more: Any) -> ListedRun:
    began = time.time() - 90
    run = ListedRun(
        verified=True,
        run=ID.format(number),
        short=number,
        cluster="a-cluster-with-long-name",
        state="finished",
        began=began,
        ended=began + 75,
        nodes=tuple(f"gpu{n:02}" for n in range(1, 17)),
        command=("train.py", "--steps", "100000", "--out", "/data/out", "--resume", "/w/step_5.pt"),
        name=name,
    )
    return replace(run, **more)


def screen(width: int) -> tuple[Screen, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    return Screen(console, console), stream


def shown(*runs: ListedRun, width: int) -> str:
    on, stream = screen(width)
    show_runs(on, RunList(runs=runs, errors=()))
    return stream.getvalue()


FULL = a_run(
    "aaaa",
    "best",
    state="failed",
    step=380,
    total=1000,
    reason="gpu02, rank 3: exited with 1: torch.OutOfMemoryError: CUDA out of memory. Tried to",
    parent=ID.format("bbbb"),
    commit="0123456789abcdef",
    dirty=True,
)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, "run state began took"),
        (60, "run state began took step name"),
        (80, "run state began took step name why"),
        (120, "run state began took step name why command from"),
        (200, "run state began took step name why command from nodes commit ended"),
    ],
)
def test_columns_are_left_out_where_there_is_no_room(width: int, titles: str) -> None:
    rows = shown(FULL, a_run("bbbb"), width=width).splitlines()
    assert rows[0].split() == titles.split()
    assert max(map(len, rows)) <= width
    assert [row.split()[0] for row in rows[1:]] == ["aaaa", "bbbb"]


def test_each_column_says_what_it_is_named_for() -> None:
    row = shown(FULL, a_run("bbbb"), width=300).splitlines()[1]
    assert FULL.began is not None
    began = dt.datetime.fromtimestamp(FULL.began).astimezone()
    for text in (
        "380/1000", "1m15s", "best", "gpu02:3: torch.OutOfMemoryError: CUDA", "bbbb", "0123456*",
        "--resume /w/step_5.pt", f"{began:%b %d %H:%M}", "gpu[01-16]",
    ):  # fmt: skip
        assert text in row


def test_a_run_of_another_year_has_the_year() -> None:
    old = dt.datetime(2024, 5, 1, 13, 4).timestamp()  # noqa: DTZ001
    assert "2024-05-01 13:04" in shown(replace(FULL, began=old), width=300)


def test_a_long_command_is_cut_in_its_middle() -> None:
    text = "train.py --steps 100000 --resume /w/step_5.pt"
    assert shorten(text, 30).startswith("train.py --step")
    assert shorten(text, 30).endswith("/w/step_5.pt")
    assert len(shorten(text, 30)) == 30
    assert shorten(text, 100) == text
    row = shown(a_run("aaaa"), width=100).splitlines()[1]
    assert "train.py --steps" in row
    assert "/w/step_5.pt" in row


def test_names_that_differ_at_their_end_are_told_apart() -> None:
    names = [f"sweep-of-a-long-name-lr1e-{n}" for n in range(1, 4)]
    lines = shown(*(a_run(f"run{n}", name) for n, name in enumerate(names)), width=80).splitlines()
    assert [n in line for line, n in zip(lines[1:], ("e-1", "e-2", "e-3"), strict=True)] == [
        True
    ] * 3


def test_columns_without_a_value_are_left_out() -> None:
    titles = shown(a_run("aaaa"), width=200).splitlines()[0].split()
    assert not {"name", "step", "why", "from", "commit"} & set(titles)


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


def test_launches_that_were_refused_are_counted_unless_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran, refused = a_run("aaaa"), replace(a_run("bbbb"), ended_by="busy")
    listed = RunList(runs=(ran, refused), errors=())
    show_runs(Screen(), listed, refused=False)
    out, err = capsys.readouterr()
    assert ("aaaa" in out, "bbbb" in out) == (True, False)
    assert err == "1 refused run left out\nhint: clusterctl runs --failed\n"
    for shown_all in ({}, {"refused": True}):
        show_runs(Screen(), listed, **shown_all)
        assert "bbbb" in capsys.readouterr().out
    show_runs(Screen(), replace(listed, runs=(refused,)), refused=False)
    assert "bbbb" in capsys.readouterr().out


def test_one_run_is_shown_with_all_that_is_remembered_of_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    options = {"name": "base", "env": [["A", "1"], ["API_KEY", "2"]], "launcher_args": ["--tee=3"]}
    base = RunRecord(run=RUN, began=10.0, cluster=CLUSTER, options=options)
    resumed = Resumed(run=RUN, checkpoint="/c/step_5", step=5)
    again = replace(
        base,
        run="lab-20260102t000000-efgh",
        resumed=resumed,
        commit="c0ffee",
        dirty=True,
        findings=(
            {"status": "warn", "message": "clocks differ"},
            {"status": "skip", "message": "no GPU is used"},
        ),
    )
    for one in (base, again):
        records.write(one)
    views = {
        one.run: view_of(
            one.run, CLUSTER, {"a": node_run("a", progress={"step": 7, "total": 9})}, {}
        )
        for one in (base, again)
    }
    on, stream = screen(300)
    show_run(on, one_run(views[again.run], again, records))
    text = stream.getvalue()
    for expected in (
        "short id      efgh", f"{RUN} /c/step_5", "7/9", "commit c0ffee with changes",
        "name=base, env=A=1 API_KEY=(hidden), launcher_args=--tee=3",
        "clocks differ", str(tmp_path), f"hint: clusterctl logs {again.run} --chain",
    ):  # fmt: skip
        assert expected in text
    assert "no GPU is used" not in text
    document = one_run(views[RUN], base, records).document()
    assert document["chain"] == [RUN, again.run]
    assert document["status"]["run"] == document["run"] == RUN


def test_runs_that_are_kept_by_choice_are_one_line_with_the_flag() -> None:
    on, stream = screen(300)
    kept = (*(Kept(run=f"lab-{n}", why=NAMED) for n in range(9)), Kept(run="lab-9", why="it lives"))
    show_pruned(on, Pruned(removed=("lab-0",), kept=kept, errors=()), keep=3)
    assert stream.getvalue().splitlines() == [
        "lab-0",
        "lab-9 is kept: it lives",
        "9 runs with a name or of the last day kept",
        "hint: clusterctl runs --prune 3 --all",
        "1 run deleted",
    ]
