"""Which files a path stands for, and what is no such file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train.data import paths
from train.errors import ConfigError


def test_a_folders_files_are_taken_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.ndjson", "c.txt"):
        (tmp_path / name).write_text("{}\n")
    assert [path.name for path in paths.find(tmp_path, key="k")] == ["a.ndjson", "b.jsonl"]


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
                paths.find(tmp_path, key=key)
        else:
            found = [path.stem for path in paths.find(tmp_path, key=key)]
            assert found == [names[one] if isinstance(one, int) else one for one in wanted]


def test_a_folder_of_another_format_is_told_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        paths.find(tmp_path, key="dataset_path")
    (tmp_path / "train-0.csv").touch()
    with pytest.raises(ConfigError, match="read_csv"):
        paths.find(tmp_path, key="dataset_path")


def test_parquet_files_are_read_if_a_folder_has_no_json_lines(tmp_path: Path) -> None:
    (tmp_path / "train-0.parquet").touch()
    (tmp_path / "test-0.parquet").touch()
    assert paths.find(tmp_path, key="dataset_path") == (tmp_path / "train-0.parquet",)
    assert paths.find(tmp_path, key="eval_dataset_path") == (tmp_path / "test-0.parquet",)
    (tmp_path / "train-0.jsonl").write_text("{}\n")
    assert paths.find(tmp_path, key="dataset_path") == (tmp_path / "train-0.jsonl",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "[\n{}]", "jq -c"),
        ("a.jsonl", '[{"text": "a"}]', "found one JSON array"),
        ("a.csv", "text\nhello\n", "read_csv"),
    ],
)
def test_another_format_is_told_the_way_out(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        paths.find(path, key="dataset_path")
    assert said in str(caught.value)


def test_a_missing_path_names_the_nearest_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is {tmp_path} and nothing below"):
        paths.find(tmp_path / "no" / "such.jsonl", key="dataset_path")


def test_what_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.symlink_to("/proc/self/mem")  # reading from its beginning is an I/O error
    with pytest.raises(
        ConfigError, match=f"k: expected a file .* read at {path}, found: Input/out"
    ):
        paths.find(path, key="k")
    with pytest.raises(ConfigError, match="found: File name too long"):
        paths.find(tmp_path / ("a" * 5000), key="k")
