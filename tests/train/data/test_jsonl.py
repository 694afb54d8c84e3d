"""Files of lines: which ones, whose, and what is no such file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train.data import jsonl
from train.errors import ConfigError


def test_a_folders_files_are_taken_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.ndjson", "c.txt"):
        (tmp_path / name).write_text("{}\n")
    assert [path.name for path in jsonl.find(tmp_path, key="k")] == ["a.ndjson", "b.jsonl"]


@pytest.mark.parametrize(
    ("names", "train", "evaluation"),
    [
        (["a", "b"], ["a", "b"], ["a", "b"]),
        (["train", "eval"], ["train"], ["eval"]),
        (["oasst-train-0", "oasst-train-1", "oasst-test"], [0, 1], ["oasst-test"]),
        (["dev", "extra", "test", "train"], ["train"], ["dev"]),
        (["extra", "test"], ["extra"], ["test"]),
        (["contest", "trainer"], ["contest", "trainer"], ["contest", "trainer"]),
        (["test"], None, ["test"]),
        (["train"], ["train"], None),
    ],
)
def test_a_folders_held_out_splits_are_not_trained_on(
    tmp_path: Path, names: list[str], train: list[Any] | None, evaluation: list[Any] | None
) -> None:
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    for key, wanted in (("dataset_path", train), ("eval_dataset_path", evaluation)):
        if wanted is None:
            with pytest.raises(ConfigError, match="give the path of the file that is meant"):
                jsonl.find(tmp_path, key=key)
        else:
            found = [path.stem for path in jsonl.find(tmp_path, key=key)]
            assert found == [names[one] if isinstance(one, int) else one for one in wanted]


def test_a_folder_of_another_format_is_told_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        jsonl.find(tmp_path, key="dataset_path")
    (tmp_path / "train-0.parquet").touch()
    with pytest.raises(ConfigError, match="read_parquet"):
        jsonl.find(tmp_path, key="dataset_path")


def test_strides_cover_all_lines_over_files(tmp_path: Path) -> None:
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    one.write_text("a\n\nb")
    two.write_text("c\nd\n")
    found = [line for start in (0, 1, 2) for line in jsonl.read((one, two), start=start, stride=3)]
    assert sorted((line.number, line.where, line.content.strip()) for line in found) == [
        (0, f"{one}:1", b"a"),
        (2, f"{one}:3", b"b"),
        (3, f"{two}:1", b"c"),
        (4, f"{two}:2", b"d"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "[\n{}]", "jq -c"),
        ("a.jsonl", '[{"text": "a"}]', "found one JSON array"),
        ("a.parquet", "PAR1", "read_parquet"),
        ("a.csv", "text\nhello\n", "read_csv"),
    ],
)
def test_another_format_is_told_the_way_out(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        jsonl.find(path, key="dataset_path")
    assert said in str(caught.value)


def test_a_missing_path_names_the_nearest_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is {tmp_path} and nothing below"):
        jsonl.find(tmp_path / "no" / "such.jsonl", key="dataset_path")
