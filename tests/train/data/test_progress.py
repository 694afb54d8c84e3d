"""Whoever waits for the preparation of data sees how far it is; short work says nothing."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.world import World
from train.config.config import Config
from train.data import dataset, encoding, fingerprint, progress, token_cache
from train.data.progress import Phase, Reporter
from train.distributed.env import RankEnv

WHAT = ("tokenizing", "dataset_path")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell after a twentieth of a second, and again as often."""
    monkeypatch.setattr(progress, "FIRST", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every call of the tokenizer take its time."""
    plainly = encoding.encode

    def slowly(*args: Any) -> Any:
        time.sleep(seconds)
        return plainly(*args)

    monkeypatch.setattr(encoding, "encode", slowly)


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Config:
    """Return a training on 2,000 rows of text."""
    rows = "".join(json.dumps({"text": f"row {n} of the data"}) + "\n" for n in range(2000))
    (tmp_path / "data.jsonl").write_text(rows)
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path=str(tmp_path / "data.jsonl"),
        output_dir=str(tmp_path / "output"),
        seq_len=48,
    )


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
def test_rows_speed_and_what_is_left_are_told_while_tokenizing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 20_000)
    slow_down(monkeypatch, 0.1)
    told: list[Phase] = []
    dataset.prepare(config, RankEnv(), report=told.append)
    told = [phase for phase in told if phase.name == "tokenizing"]
    rows = [phase.rows for phase in told]
    assert rows == sorted(rows)
    assert len(set(rows)) > 4
    assert {phase.total for phase in told} == {2000}
    middle = next(phase for phase in told if 0 < phase.rows < 2000)
    assert middle.words().startswith(f"tokenizing dataset_path: {middle.rows:,} of 2,000 rows, ")
    assert middle.words().endswith(" left")
    assert middle.about() == {
        "name": "tokenizing", "dataset": "dataset_path", "rows": middle.rows, "total": 2000
    }  # fmt: skip
    assert told[-1].words().startswith("tokenizing dataset_path: all 2,000 rows in 0:00:0")


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
def test_a_node_counts_the_rows_of_others_too(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 5_000)
    slow_down(monkeypatch, 0.1)
    told: list[Phase] = []
    nodes = [RankEnv(node_rank=node, nodes=2) for node in range(2)]
    other = threading.Thread(target=dataset.prepare, args=(config, nodes[1]))
    other.start()
    dataset.prepare(config, nodes[0], report=told.append)
    other.join()
    assert max(phase.rows for phase in told if not phase.over) > 1500


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
def test_a_node_with_rows_of_its_own_counts_those(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, 0.1)
    told: list[Phase] = []
    strided = replace(config, node_data="strided")
    dataset.prepare(strided, RankEnv(node_rank=1, nodes=4), report=told.append)
    assert {phase.total for phase in told if phase.name == "tokenizing"} == {500}
    assert max(phase.rows for phase in told) == 500


@pytest.mark.torch
def test_work_of_a_second_says_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 60.0)  # a busy machine takes longer
    told: list[Phase] = []
    dataset.prepare(config, RankEnv(), report=told.append)
    dataset.prepare(config, RankEnv(), report=told.append)
    assert not told


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
def test_the_first_pass_over_a_large_file_is_told(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = fingerprint.scan

    def slowly(files: tuple[Path, ...], parts: int) -> fingerprint.Scan:
        time.sleep(0.3)
        return plainly(files, parts)

    monkeypatch.setattr(fingerprint, "scan", slowly)
    told: list[Phase] = []
    dataset.prepare(config, RankEnv(), report=told.append)
    assert told[0].words() == "reading dataset_path: 0.00 GiB, 0:00:00 so far"
    assert told[0].about() == {"name": "reading", "dataset": "dataset_path"}


def test_an_hour_is_told_as_one() -> None:
    phase = Phase(name="tokenizing", dataset="a", seconds=9, rows=10, total=36_010, rate=10)
    assert phase.words() == "tokenizing a: 10 of 36,010 rows, 10 rows/s, 1:00:00 left"


@pytest.mark.usefixtures("quick")
def test_a_folder_that_does_not_answer_ends_no_progress() -> None:
    told: list[Phase] = []
    answers = [0]

    def rows() -> int:
        if len(told) == 1:
            answers.append(7)
            raise OSError
        return answers[-1]

    with Reporter(dataset="a", report=told.append).during("tokenizing", total=9, rows=rows):
        time.sleep(0.4)
    assert [phase.rows for phase in told][:2] == [0, 0]
    assert told[-2].rows == 7


@pytest.mark.torch
def test_rank_0_prints_it_and_status_json_has_it(world: World, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": f"row {n} of the data"}) + "\n" for n in range(2000))
    (tmp_path / "data.jsonl").write_text(rows)
    changes: dict[str, Any] = {"dataset_path": str(tmp_path / "data.jsonl")}
    changes["cache_dir"] = str(tmp_path / "own")
    run = world.start(nodes=(2,), before=slowly_in_the_open, max_steps=1, **changes)
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["state"] == "starting":
        time.sleep(0.02)
        if (run.output / "status.json").exists():
            seen.append(run.status())
    assert run.wait() == [0, 0]
    phases = [each["phase"] for each in seen if "phase" in each]
    own = [each for each in phases if (each["name"], each["dataset"]) == WHAT]
    assert {each["total"] for each in own} == {2000}
    assert "phase" not in run.status()
    lines = [line for line in run.said().splitlines() if line.startswith("tokenizing dataset_path")]
    assert len(lines) > 3
    assert "tokenizing" not in run.said(1)


def slowly_in_the_open(_: int) -> None:
    """Be a slow tokenizer that tells often."""
    progress.FIRST = progress.EVERY = 0.05
    plainly = encoding.encode

    def slowly(*args: Any) -> Any:
        time.sleep(0.1)
        return plainly(*args)

    encoding.encode = slowly  # type: ignore[assignment]
