"""A run drawn: a picture, and its losses as bars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.tools.plot import bars, main


def write(folder: Path, count: int) -> Path:
    folder.mkdir()
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, count + 1):
            loss = {"kind": "step", "step": step, "loss": 4.0 / step, "tok_s": 100.0}
            file.write(json.dumps(loss) + "\n")
            if step % 5 == 0:
                file.write(json.dumps({"kind": "eval", "step": step, "eval_loss": 5 / step}) + "\n")
        file.write('{"kind": "st')
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_become_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write(tmp_path / "a", 20), write(tmp_path / "b", 10)]
    assert main([*map(str, runs), "-o", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "steps 1 to 20" in said
    assert "tokens/s  100 in the middle" in said
    assert "loss      4.0000 -> 0.2000" in said


@pytest.mark.parametrize("count", [None, 0])
def test_a_run_without_numbers_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int | None
) -> None:
    folder = tmp_path / "run" if count is None else write(tmp_path / "run", count)
    assert main([str(folder)]) == 2
    assert "found none" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("target", "found"),
    [("nowhere/run.png", "No such file or directory"), ("run.txt", "'txt' is not supported")],
)
def test_a_picture_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, found: str
) -> None:
    assert main([str(write(tmp_path / "run", 5)), "-o", str(tmp_path / target)]) == 2
    said = capsys.readouterr()
    assert "steps 1 to 5" in said.out
    assert said.err.startswith(f"error: {tmp_path / target}: expected a picture written, found: ")
    assert found in said.err


def test_bars_follow_the_values() -> None:
    assert bars([3, 2, 1, 1]) == "█▅▁▁"
    assert bars([1.0, 1.0]) == "▁▁"
    assert len(bars(list(range(1000)))) <= 60
