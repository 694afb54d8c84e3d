"""Which files a path stands for, and what is no such file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train.data.files import paths
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


def test_parquet_files_are_read_if_a_folder_has_no_json_lines(tmp_path: Path) -> None:
    (tmp_path / "train-0.parquet").touch()
    (tmp_path / "test-0.parquet").touch()
    assert paths.find(tmp_path, key="dataset_path") == (tmp_path / "train-0.parquet",)
    assert paths.find(tmp_path, key="eval_dataset_path") == (tmp_path / "test-0.parquet",)
    (tmp_path / "train-0.jsonl").write_text("{}\n")
    assert paths.find(tmp_path, key="dataset_path") == (tmp_path / "train-0.jsonl",)


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


def found(path: Path, key: str = "dataset_path") -> list[str]:
    """Return the files of a path in the folder `tmp_path`, by their names from there."""
    folder = next(parent for parent in (path, *path.parents) if (parent / "here").exists())
    return [str(file.relative_to(folder)) for file in paths.find(path, key=key)]


def test_the_first_kind_of_a_folders_files_is_read(tmp_path: Path) -> None:
    put(tmp_path, "here")
    for name in ("e.tsv", "d.csv.gz", "c.json", "b.parquet", "a.jsonl.zst", "a.jsonl"):
        put(tmp_path, name)
        assert found(tmp_path) == [name]
    put(tmp_path, "B.NDJSON", "z.jsonl.gz", "b.txt", "dataset_info.json")
    assert found(tmp_path) == ["B.NDJSON", "a.jsonl", "z.jsonl.gz"], "a.jsonl.zst is a.jsonl again"


def test_folders_below_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    put(tmp_path, "here", "b/2.jsonl", "b/1.jsonl", "a/x/0.jsonl", "c.jsonl", "a.jsonl")
    assert found(tmp_path) == ["a/x/0.jsonl", "a.jsonl", "b/1.jsonl", "b/2.jsonl", "c.jsonl"]
    (tmp_path / "b" / "again").symlink_to(tmp_path)
    other = tmp_path.with_name(f"{tmp_path.name}-other")
    put(other, "3.jsonl")
    (tmp_path / "linked").symlink_to(other)
    assert len(found(tmp_path)) == 6, "what a link leads to, and nothing twice"
    put(tmp_path, "train/0.jsonl", "test/0.jsonl")
    assert found(tmp_path) == ["train/0.jsonl"]
    assert found(tmp_path, "eval_dataset_path") == ["test/0.jsonl"]


def test_hidden_files_leftovers_and_runs_are_no_data(tmp_path: Path) -> None:
    put(
        tmp_path, "here", "a.jsonl", "._a.jsonl", ".a.jsonl.swp.jsonl", "~$b.jsonl", "#c.jsonl",
        "d.jsonl~", ".ipynb_checkpoints/a-checkpoint.jsonl", "__MACOSX/a.jsonl", "out/status.json",
        "out/metrics.jsonl", "out/deep/0.jsonl", "tokens/scan-0123456789abcdef0123.json",
        "tokens/x.jsonl",
    )  # fmt: skip
    assert found(tmp_path) == ["a.jsonl"]
    assert found(tmp_path / "*") == ["a.jsonl"]
    assert found(tmp_path / "**" / "*.jsonl") == ["a.jsonl"]
    put(tmp_path, "metrics.jsonl", "status.json")
    assert found(tmp_path) == ["a.jsonl"], "output_dir may be the folder of the data"


def test_a_pattern_stands_for_its_files(tmp_path: Path) -> None:
    put(
        tmp_path,
        "here",
        "b-2.jsonl",
        "b-1.jsonl",
        "a.jsonl",
        "sub/b-3.jsonl",
        "b-4.txt",
        "[x].jsonl",
    )
    assert found(tmp_path / "b-*.jsonl") == ["b-1.jsonl", "b-2.jsonl"]
    assert found(tmp_path / "**" / "b-*") == ["b-1.jsonl", "b-2.jsonl", "sub/b-3.jsonl"]
    assert found(tmp_path / "s?b") == ["sub/b-3.jsonl"]
    assert found(tmp_path / "[x].jsonl") == ["[x].jsonl"], "a name that is there is no pattern"
    put(tmp_path, "b-train.jsonl", "b-test.jsonl")
    assert found(tmp_path / "b-*") == ["b-train.jsonl"]
    assert found(tmp_path / "b-t*t*") == ["b-test.jsonl"], "nothing else is meant"
    with pytest.raises(ConfigError, match=r"k: expected files that match .*/B-\*, found none"):
        paths.find(tmp_path / "B-*", key="k")


def test_what_is_missing_is_told_with_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "data/train.jsonl", "data/.hidden", "data/other.csv")
    for wanted, said in (
        ("data/trian.jsonl", f"trian.jsonl, found none; nearest: {tmp_path}/data/train.jsonl"),
        ("dta/train.jsonl", f"dta/train.jsonl, found none; nearest: {tmp_path}/data"),
        ("data/x", f"data/x, found none; in {tmp_path}/data there are other.csv, train.jsonl"),
        ("data/train.jsonl/0", f"found that {tmp_path}/data/train.jsonl is no folder"),
        ("data/*.parquet", f"found none; in {tmp_path}/data there are other.csv, train.jsonl"),
    ):
        with pytest.raises(ConfigError) as caught:
            paths.find(tmp_path / wanted, key="dataset_path")
        assert said in str(caught.value)


def test_a_folder_without_data_is_told_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\*\.csv, .* files in .*, found that there is nothing"):
        paths.find(tmp_path, key="dataset_path")
    put(tmp_path, "README.md", "data-00000-of-00001.arrow")
    with pytest.raises(
        ConfigError, match=r"there are README\.md, data-00000-of-00001\.arrow"
    ) as caught:
        paths.find(tmp_path, key="dataset_path")
    assert "a.ipc.open_stream" in str(caught.value)


def test_what_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.symlink_to("/proc/self/mem")  # reading from its beginning is an I/O error
    with pytest.raises(
        ConfigError, match=f"k: expected a file .* read at {path}, found: Input/out"
    ):
        paths.find(path, key="k")
    with pytest.raises(ConfigError, match="found: File name too long"):
        paths.find(tmp_path / ("a" * 5000), key="k")
