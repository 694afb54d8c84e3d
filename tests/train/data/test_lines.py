"""Lines of several files: each once, whoever reads which of them."""

from __future__ import annotations

from pathlib import Path

from train.data.files import lines


def test_strides_cover_all_lines_over_files(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    one.write_text("a\n\nb")
    two.write_text("c\nd\n")
    found = [line for start in (0, 1, 2) for line in lines.read((one, two), start=start, stride=3)]
    assert sorted((line.number, line.where, line.content) for line in found) == [
        (0, f"{one}:1", b"a\n"),
        (2, f"{one}:3", b"b"),
        (3, f"{two}:1", b"c\n"),
        (4, f"{two}:2", b"d\n"),
    ]
