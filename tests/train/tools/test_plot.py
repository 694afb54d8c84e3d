"""Runs compared: a table, curves that need no color, a picture, JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from train.tools import plot
from train.tools.plot import compare, main

GIB = 1 << 30


def write(folder: Path, count: int, first: int = 1, factor: float = 4.0) -> Path:
    """Write a run: loss factor / step, an evaluation every five steps, a torn last line."""
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(first, count + 1):
            loss = {"kind": "step", "step": step, "loss": factor / step, "tok_s": 100.0 * step}
            file.write(json.dumps(loss | {"memory": GIB, "memory_max": step * GIB}) + "\n")
            if step % 5 == 0:
                file.write(json.dumps({"kind": "eval", "step": step, "eval_loss": 5 / step}) + "\n")
        file.write('{"kind": "st')
    return folder


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out matplotlib where a test is about text: its import takes a second."""
    monkeypatch.setattr(plot, "draw", lambda *_: None)


@pytest.mark.usefixtures("no_picture")
def test_runs_become_a_table_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        write(tmp_path / ("a-long-name-" * 5 + name), 20 + number)
        for number, name in enumerate("ab")
    ]
    assert main(list(map(str, runs))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["#", "run", "steps", "loss", "best", "eval", "tokens/s", "memory"]
    assert lines[1].split()[2:] == ["20", "0.2000", "0.2500", "at", "20", "1,050", "20.00", "GiB"]
    assert lines[1].split()[1].startswith("...")
    assert lines[2].split()[0] == "2"


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--output", "asked.png"], 2)])
def test_a_picture_that_was_asked_for_and_cannot_be_drawn_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    assert main([str(write(tmp_path / "run", 20)), *words]) == code
    said = capsys.readouterr()
    assert "0.2000" in said.out
    assert "no picture: matplotlib is not installed\nhint: pip install matplotlib" in said.err
    assert said.err.startswith("error: ") == bool(code)


@pytest.mark.usefixtures("no_picture")
def test_curves_have_the_same_steps_and_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "whole", 8)
    write(tmp_path / "late", 8, first=5, factor=32.0)
    assert main([str(tmp_path / "whole"), str(tmp_path / "late")]) == 0
    said = capsys.readouterr().out
    assert (
        "loss, steps 1 to 8: ▁ 0.5000, █ 6.4000\n  1 whole  ▅▃▂▂▁▁▁▁\n  2 late       █▇▆▅\n" in said
    )
    assert "eval loss, steps 1 to 8: ▁ 1.0000, █ 1.0000\n  1 whole      ▁\n" in said
    assert "memory, GiB, steps 1 to 8: ▁ 1.0000, █ 8.0000" in said
    assert "\x1b" not in said


@pytest.mark.usefixtures("no_picture")
def test_json_is_all_there_is_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write(tmp_path / "a" / "output", 20)), str(write(tmp_path / "b" / "output", 4))]
    assert main([*runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["runs"][0] == {
        "name": "a/output", "steps": 20, "loss": 0.2, "best_eval_loss": 0.25, "best_eval_step": 20,
        "median_tokens_per_second": 1050.0, "peak_memory_bytes": 20 * GIB,
    }  # fmt: skip
    assert found["runs"][1]["name"] == "b/output"
    assert found["runs"][1]["best_eval_loss"] is None
    assert not (tmp_path / "a" / "output" / "plot.png").exists()


def records(*steps: int, **more: Any) -> list[dict[str, Any]]:
    return [{"kind": "step", "step": step, "loss": float(step), **more} for step in steps]


def test_repeated_steps_count_once_and_the_last_one_wins() -> None:
    evaluated = {"kind": "eval", "step": 5, "eval_loss": 0.1}
    first = [*records(1, 2, 3, 4, 5), evaluated]
    resumed = records(3, 4, loss=9.0)
    (run,) = compare({"a": [*first, *resumed]})
    assert run.curves["loss"] == {1: 1.0, 2: 2.0, 3: 9.0, 4: 9.0}
    assert (run.steps, run.loss, run.best_eval) == (4, 9.0, None)


def test_records_of_other_versions_are_compared_as_far_as_they_go() -> None:
    odd: list[dict[str, Any]] = [
        {"step": 1},
        {"kind": "step", "step": 2, "loss": "nan", "tok_s": [], "memory": 5},
    ]
    (run,) = compare({"old": [*odd, {"kind": "step", "step": 1 << 70, "loss": 10**400}]})
    assert run.row() == {
        "name": "old", "steps": 2, "loss": "nan", "best_eval_loss": None, "best_eval_step": None,
        "median_tokens_per_second": None, "peak_memory_bytes": 5.0,
    }  # fmt: skip
    assert plot.curves([run], plot.BARS)  # of the memory alone
    assert compare({"none": []})[0].row()["steps"] == 0


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("count", [None, 0])
def test_a_run_without_numbers_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int | None
) -> None:
    folder = tmp_path / "run" if count is None else write(tmp_path / "run", count)
    assert main([str(folder)]) == 2
    assert "expected" in capsys.readouterr().err
    assert main([str(folder), str(write(tmp_path / "good", 5))]) == 2
    said = capsys.readouterr()
    assert "1  good" in said.out
    assert f"error: {folder}" in said.err


@pytest.mark.usefixtures("no_picture")
def test_a_terminal_without_block_characters_gets_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "ascii", write_through=True))
    assert main([str(write(tmp_path / "run", 8))]) == 0
    assert b"  1 run  .:-=+*#@\n" in printed.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_become_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write(tmp_path / "a", 20), write(tmp_path / "b", 10)]
    assert main([*map(str, runs), "-o", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(tmp_path / "a")]) == 0
    assert (tmp_path / "a" / "plot.png").exists()
    assert "plot.png" in capsys.readouterr().err
    for target, found in (("nowhere/a.png", "No such file"), ("a.txt", "'txt' is not supported")):
        assert main([str(tmp_path / "a"), "-o", str(tmp_path / target)]) == 2
        said = capsys.readouterr()
        assert "1  a" in said.out
        assert said.err.startswith(f"error: {tmp_path / target}: expected a picture written")
        assert found in said.err
