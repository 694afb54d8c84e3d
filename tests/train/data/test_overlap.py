"""Samples that are evaluated on and trained on as well are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from train.config.config import Config
from train.config.datasets import Dataset
from train.data import dataset, overlap, token_cache
from train.distributed.env import RankEnv

pytestmark = pytest.mark.torch


@pytest.fixture
def config(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 1000)
    monkeypatch.setattr(overlap, "TOGETHER", 7)
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path="-",
        output_dir=str(tmp_path / "output"),
        seq_len=64,
    )


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def notes(config: Config, rank: int = 0) -> list[str]:
    corpus = dataset.prepare(config, RankEnv(rank=rank))
    return [note for note in corpus.notes if "also trained on" in note]


def test_rows_of_both_sets_are_counted(config: Config, tmp_path: Path) -> None:
    texts = [f"line {number} of some words" for number in range(120)]
    one = write(tmp_path / "one.jsonl", texts[:50])
    two = write(tmp_path / "two.jsonl", texts[50:100])
    held_out = [*texts[:3], *texts[97:110], texts[0]]
    config = replace(
        config,
        dataset_path=(Dataset(path=one), Dataset(path=two, weight=2)),
        eval_dataset_path=write(tmp_path / "eval.jsonl", held_out),
    )
    assert notes(config) == ["7 of 17 evaluation samples are also trained on"]
    assert notes(config, rank=1) == [], "rank 0 prints it"
    apart = write(tmp_path / "apart.jsonl", texts[100:])
    assert notes(replace(config, eval_dataset_path=apart)) == []
    assert notes(replace(config, eval_dataset_path=None)) == []


def test_only_samples_that_are_equal_count(config: Config, tmp_path: Path) -> None:
    long = ["a"] * 40
    changed = [" ".join([*long[:at], "b", *long[at + 1 :]]) for at in range(40)]
    config = replace(
        config,
        seq_len=512,
        dataset_path=write(tmp_path / "train.jsonl", [" ".join(long)] * 2),
        eval_dataset_path=write(tmp_path / "eval.jsonl", [*changed, " ".join(long)]),
    )
    assert notes(config) == ["1 of 41 evaluation samples are also trained on"]


def test_duplicates_that_eval_split_divides_are_counted(config: Config, tmp_path: Path) -> None:
    texts = [f"line {number} of some words" for number in range(20)] * 5
    config = replace(config, dataset_path=write(tmp_path / "a.jsonl", texts), eval_split=0.1)
    assert notes(config) == ["10 of 10 evaluation samples are also trained on"]
    once = write(tmp_path / "b.jsonl", texts[:20])
    assert notes(replace(config, dataset_path=once)) == []
