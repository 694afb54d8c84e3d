"""Data sets in a store, which is a folder here: what is downloaded, and that it reads the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from train.config.config import Config
from train.data import first_lines, hub
from train.data.files import lines
from train.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(name_or_path="m", dataset_path="d", output_dir=str(tmp_path / "output"))


def write(folder: Path, names: str) -> None:
    for number, name in enumerate(names.split()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f'{{"text": "{name} {number}"}}\n')


def read(url: str, config: Config) -> list[object]:
    files = hub.dataset_files(url, config, key="dataset_path")
    return [line.content for line in lines.read(files)]


@pytest.mark.parametrize(
    ("names", "below"),
    [
        ("a.jsonl", "/a.jsonl"),
        ("b/2.jsonl a/1.jsonl c.jsonl notes.txt .cache/x.jsonl", ""),
        ("train.jsonl validation.jsonl", ""),
        ("one.jsonl two.jsonl", "/o*.jsonl"),
        ("data.jsonl/part.jsonl", "/data.jsonl"),
    ],
)
def test_a_store_has_the_samples_of_a_folder_in_their_order(
    tmp_path: Path, config: Config, names: str, below: str
) -> None:
    folder = tmp_path / "store"
    write(folder, names)
    assert read(f"file://{folder}{below}", config) == read(f"{folder}{below}", config)


def test_it_is_downloaded_once_and_again_if_it_has_changed(
    tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "store/a.jsonl")
    url = f"file://{tmp_path}/store"
    before = read(url, config)
    assert f"downloading {url} (1 file, 0.0 MiB)" in capsys.readouterr().out
    assert read(url, config) == before
    assert capsys.readouterr().out == ""
    (tmp_path / "store" / "a.jsonl").write_text('{"text": "longer than it was before"}\n')
    assert read(url, config) != before
    found = (tmp_path / "output/tokens/downloads").glob("*/downloaded.json")
    assert all(json.loads(path.read_text())["url"] == url for path in found)


def test_the_check_lists_it_and_downloads_nothing(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "store/a.jsonl store/b.jsonl")
    config = replace(config, dataset_path=f"file://{tmp_path}/store")
    (finding,) = first_lines.data_sets(config)
    assert finding.said.endswith("/store: 2 files, 0.0 MiB, downloaded at start")
    assert not (tmp_path / "output").exists()
    (tmp_path / "store" / "a.jsonl").unlink()
    (tmp_path / "store" / "b.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"dataset_path: expected .* files in file://"):
        read(f"file://{tmp_path}/store", config)
