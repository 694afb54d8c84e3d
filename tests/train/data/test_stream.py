"""Streamed data: the samples of the ordinary run in its order, exact after kill -9, bounded."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import train
from tests.train.outcome import close
from tests.train.tiny import LONGEST, VOCABULARY
from tests.train.world import World, without_workers
from tests.waiting import wait_until
from train.checkpoint import manifest
from train.config.batch_size import batch_size
from train.config.config import Config
from train.config.datasets import Dataset
from train.data import dataset
from train.data.batches import order
from train.data.formats import record_of
from train.data.stream import batches, windows
from train.data.stream.windows import Place
from train.distributed.env import RankEnv
from train.errors import ConfigError

pytestmark = pytest.mark.torch


HOW: dict[str, Any] = {"stream": True, "cache_dir": None, "before": without_workers, "max_steps": 8}

EMPTY = Config(name_or_path="m", dataset_path="d")


def windows_left(world: World) -> list[Path]:
    return [*world.folder.rglob("stream-*")]


@pytest.mark.parametrize("batching", ["balanced", "packed"])
def test_a_window_with_all_samples_is_the_ordinary_run(world: World, batching: str) -> None:
    """Bit for bit, over two epochs."""
    ordinary = world.run(max_steps=8, batching=batching)
    streamed = world.run(**HOW, batching=batching)
    assert streamed.losses() == ordinary.losses()
    assert "Data:       streamed from 1 file, shuffled within 8192 lines" in streamed.said()
    assert not windows_left(world)


def torchrun(config: Config, ranks: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a training as a user does, with processes that make windows."""
    keys = {key: value for key, value in config.to_dict().items() if value != getattr(EMPTY, key)}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += [f"--nproc-per-node={ranks}", "-m", "train"]
    argv += [f"--set={key}={value}" for key, value in keys.items()]
    environment = os.environ | {"PYTHONPATH": str(Path(train.__file__).parents[1])}
    with log.open("wb") as file:
        return subprocess.Popen(argv, stdout=file, stderr=file, cwd=log.parent, env=environment)


def test_killed_ranks_resume_bit_for_bit_and_on_any_world_size(world: World, tiny: Path) -> None:
    """Over several files, windows and epochs."""
    lines = (tiny / "train.jsonl").read_text().splitlines(keepends=True)
    data = world.folder / "data"
    data.mkdir()
    for number, end in enumerate((20, 21, 45, 60)):
        (data / f"{number}.jsonl").write_text("".join(lines[:end][-25:]))
    how = HOW | {"dataset_path": str(data), "stream_window": 16, "save_steps": 2, "max_steps": 24}
    whole = world.run(**how, nodes=(2,))
    keys = {key: value for key, value in how.items() if key != "before"}
    output, log = world.folder / "killed", world.folder / "torchrun.log"
    process = torchrun(replace(world.base, **keys, output_dir=str(output)), 2, log)
    try:
        wait_until(lambda: "Step 9/24" in log.read_text(), why=log.read_text)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()  # (ranks have sessions of their own)
        process.kill()
        process.wait()
    copy = world.folder / "copy"
    shutil.copytree(output, copy, ignore=shutil.ignore_patterns("tokens"))
    again = {"output_dir": str(output), "resume_from_checkpoint": "latest"}
    resumed = world.run(**how | again, nodes=(2,))
    assert "resume: from" in resumed.said()
    assert resumed.losses() == whole.losses()
    alone = world.run(**how | again | {"output_dir": str(copy)})
    assert close(alone.losses(), whole.losses())
    assert not windows_left(world)
    (data / "4.jsonl").write_text(lines[0])
    (latest,) = [path for path in copy.glob("step-*") if manifest.step_of(path) == 22]
    refused = world.start(**how, resume_from_checkpoint=str(latest))
    assert refused.wait() == [4]
    assert "expected the files of the checkpoint, found others" in refused.said()


def test_without_shuffling_samples_come_in_the_order_of_the_lines(world: World, tiny: Path) -> None:
    """Windows end within steps."""
    lines = (tiny / "train.jsonl").read_text().splitlines(keepends=True)
    (world.folder / "in-order.jsonl").write_text("".join(lines[at] for at in order(42, 0, 60)))
    how = HOW | {"dataset_path": str(world.folder / "in-order.jsonl"), "stream_window": 0}
    streamed = world.run(**how | {"before": small_windows, "max_steps": 5, "seq_len": 160})
    ordinary = world.run(max_steps=5, seq_len=160)
    assert streamed.losses() == pytest.approx(ordinary.losses(), abs=1e-5)


def small_windows(rank: int) -> None:
    without_workers(rank)
    windows.UNSHUFFLED = 9


def test_too_many_bad_lines_end_all_ranks_in_one_step_with_a_checkpoint(
    world: World, tiny: Path
) -> None:
    """As the ordinary run counts them, from a store whose files are downloaded one by one."""
    lines = (tiny / "train.jsonl").read_text().splitlines(keepends=True)
    store = world.folder / "store"
    store.mkdir()
    (store / "a.jsonl").write_text("".join([*lines[:30], "{no\n", *lines[30:40]]))
    (store / "b.jsonl").write_text("".join(["{}\n", *lines[40:]]))
    how = HOW | {"dataset_path": f"file://{store}", "stream_window": 9, "max_bad_lines": 1}
    how |= {"seed": 3, "output_dir": str(world.folder / "output")}
    run = world.start(**how, nodes=(1, 1))
    assert run.wait() == [2, 2]
    assert "left out: " in run.said()
    assert "expected at most 1 unusable lines (max_bad_lines), found 2\n" in run.said(1)
    (kept,) = run.output.glob("step-*")
    resumed = world.run(**how | {"max_bad_lines": 2, "resume_from_checkpoint": "latest"})
    assert f"from {kept}" in resumed.said()
    assert not [*run.output.rglob("*.jsonl")][1:], "besides metrics.jsonl"
    del how["dataset_path"]
    here = how | {"dataset_path": str(store), "max_bad_lines": 2, "output_dir": f"{store}/o"}
    assert world.run(**here).losses() == pytest.approx(resumed.losses(), abs=1e-5)


def streamed(base: Config, **changes: Any) -> Config:
    return replace(base, stream=True, **changes)


def test_what_needs_all_samples_is_refused(base: Config) -> None:
    with pytest.raises(ConfigError) as found:
        streamed(
            base,
            max_steps=None,
            eval_split=0.1,
            node_data="strided",
            dataset_path=(Dataset(path="a", weight=2.0), Dataset(path="b")),
        )
    assert [each.partition(":")[0] for each in found.value.problems] == [
        "max_steps", "dataset_path", "eval_split", "node_data",
    ]  # fmt: skip


def test_a_file_that_breaks_off_is_the_same_error_on_every_rank(
    base: Config, tmp_path: Path
) -> None:
    text = json.dumps([{"text": "a text of some words"}] * 20)
    (tmp_path / "a.json").write_text(text[:-20])
    config = streamed(
        base, dataset_path=str(tmp_path / "a.json"), stream_window=8, cache_dir=str(tmp_path / "c")
    )
    corpus = batches.prepare(config, RankEnv())
    assert isinstance(corpus, batches.StreamCorpus)
    source, place = corpus.source, Place()
    for _ in range(2):
        place = source.open(place, makes=True).next
    assert (place.line, place.within) == (16, 16)
    with pytest.raises(ConfigError, match="expected JSON, found"):
        source.open(place, makes=True)
    with pytest.raises(ConfigError, match="expected JSON, found"):
        source.open(place, makes=False)


def test_memory_is_tried_with_rows_as_wide_as_any(base: Config, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a short text"}))
    config = streamed(base, dataset_path=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "c"))
    corpus = batches.prepare(config, RankEnv())
    assert isinstance(corpus, batches.StreamCorpus)
    size = batch_size(config, 1)
    stream = batches.Stream(corpus, config, size, rank=0, env=RankEnv(), vocabulary=VOCABULARY)
    assert stream.largest().input_ids.shape == (1, LONGEST)


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as archive:
            for number, row in enumerate(rows):
                name, content = f"{number:04}.txt", row["text"].encode()
                if number % 2:
                    name, content = f"{number:04}.json", json.dumps(row).encode()
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=10)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "jsonl.gz", "tar"])
def test_windows_of_every_format_have_all_lines_once(
    base: Config, tmp_path: Path, kind: str
) -> None:
    rows = [{"text": f"text number {number}"} for number in range(25)]
    write_rows(tmp_path / f"a.{kind}", rows)
    config = streamed(base, dataset_path=str(tmp_path), stream_window=8, output_dir=str(tmp_path))
    (located,) = dataset.locate(config)
    source = windows.Source.of(config, located, dataset.Tokenizer(tmp_path, config))
    place, found = Place(), []
    while not place.epoch:
        _, lines, place = next(source.windows(place))
        found.append([record_of(line.content) for line in lines])
    assert [len(each) for each in found] == [8, 8, 8, 1]
    assert [row for each in found for row in each] == rows
