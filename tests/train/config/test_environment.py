"""Variables and `~` in paths become what a shell makes of them, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.config.config import Config
from train.config.parse import PATHS, parse
from train.errors import ConfigError


def read(folder: Path, text: str) -> Config:
    path = folder / "config.yaml"
    path.write_text(text)
    return parse(["--config", str(path)]).config(name_or_path="m", dataset_path="d")


@pytest.mark.parametrize("key", sorted(PATHS))
def test_every_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("HOME", "/home/you")
    for written, wanted in (
        ("$SCRATCH/a", "/scratch/a"),
        ("'${SCRATCH}2/$SCRATCH'", "/scratch2//scratch"),
        ("~/a", "/home/you/a"),
        ("a~b/~c", "a~b/~c"),
        ("org/name", "org/name"),
        ("$5/a", None),
        ("${UNSET_HERE}/a", None),
        ("~nobody-of-that-name/a", None),
    ):
        path = tmp_path / "config.yaml"
        path.write_text(f"# one line\n{key}: {written}\n")
        if wanted is None:
            with pytest.raises(ConfigError) as caught:
                parse(["--config", str(path)])
            assert f"{path}:2: {key}: expected" in str(caught.value)
        else:
            assert parse(["--config", str(path)]).given[key].value == wanted


def test_an_unset_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSET_HERE", raising=False)
    monkeypatch.setenv("EMPTY_HERE", "")
    said = r"1: output_dir: expected the variable UNSET_HERE to be set, found it unset"
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, "output_dir: $UNSET_HERE/run\n")
    with pytest.raises(ConfigError, match=r"the variable EMPTY_HERE to be set, found it empty"):
        read(tmp_path, "datasets: [{path: a, weight: 2}, '${EMPTY_HERE}/b']\n")
    with pytest.raises(ConfigError, match=r"--cache-dir: expected the variable UNSET_HERE"):
        parse(["--cache-dir", "$UNSET_HERE"])


def test_each_path_of_a_list_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/you")
    monkeypatch.setenv("DATA", "/data")
    path = tmp_path / "config.yaml"
    path.write_text("dataset_path: [~/a, {path: $DATA/b}]\neval_dataset_path: [$DATA/c, ~/d]\n")
    config = parse(["--config", str(path), "--name-or-path=m"]).config()
    assert [each.path for each in config.datasets] == ["/home/you/a", "/data/b"]
    assert config.eval_dataset_path == "/data/c,/home/you/d"
    flag = parse(["--dataset-path", "a, ~/b,$DATA/*.jsonl", "--name-or-path=m"]).config()
    assert flag.dataset_path == "a,/home/you/b,/data/*.jsonl"
