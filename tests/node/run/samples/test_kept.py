"""A run's samples on its node: bounded, private, and read past what is broken."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from clusterctl.node.run.samples import kept
from clusterctl.node.run.samples.kept import append_row, read_rows
from tests.node.run.samples.rows import BEGAN, row


def test_a_file_never_exceeds_its_limit_and_keeps_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 64 << 10)
    monkeypatch.setattr(kept, "KEPT_BYTES", 32 << 10)
    path = tmp_path / "samples.jsonl"
    for number in range(1500):
        monkeypatch.setattr(time, "time", lambda number=number: BEGAN + 5 * number)
        append_row(str(path), row(number, percent=[97] * 8, cpu=[100] * 8))
        assert path.stat().st_size <= 64 << 10
    rows = read_rows(str(path))
    assert sum(one.seconds for one in rows) == 7500
    assert rows[-1] == row(1499, percent=[97] * 8, cpu=[100] * 8)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_no_precision_makes_small_loses_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", 1 << 10)
    rows = [row(n, percent=[97] * 8) for n in range(50)]
    found = kept.thin(rows, rows[-1].time)
    assert 0 < len(found) <= 1 << 10
    assert found.endswith(kept._line(rows[-1]))


def test_broken_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    append_row(str(path), row(0))
    with path.open("ab") as file:
        file.write(b"\0\0\0\n[1]\n{}\n" + b"[" * 5000 + b'\n[1,2,[3],[["x"]],[]]\n[7,"x"')
        file.write(b"\n")
    append_row(str(path), row(1))
    assert read_rows(str(path)) == [row(0), row(1)]
    assert read_rows(str(path), since=row(0).time) == [row(1)]
    assert read_rows(str(tmp_path / "none")) == []
