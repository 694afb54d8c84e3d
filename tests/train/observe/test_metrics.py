"""Numbers of a run: the lines people know, records without duplicates, forecasts."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.config.config import Config
from train.distributed.env import RankEnv
from train.observe import metrics
from train.observe.metrics import Meter

pytestmark = pytest.mark.torch

STEP_LINE = re.compile(
    r"Step 12/1502 \| Epoch: 1\.25 \| Loss: 3\.6800 \| Norm: 1\.20 \| LR: 1\.33e-07 \| "
    r"\d+\.\d\ds \| \d+ tok/s \| .*"
    r"Mem: \d+\.\d\d GiB \| ETA: \d+:\d\d:\d\d"
)


class Alone:
    """All ranks of a run of one."""

    env = RankEnv()
    device = SimpleNamespace(type="cpu")
    hosts = ("node1",)

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE: Any = Alone()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(name_or_path="m", dataset_path="d", output_dir=str(tmp_path))


@pytest.fixture
def meter(config: Config) -> Iterator[Meter]:
    meter = Meter(config, ALONE)
    yield meter
    meter.close()


def step(meter: Meter, number: int, **changes: Any) -> None:
    about = {
        "step": number, "total": 1502, "epoch": 0, "consumed": 8 * number, "epoch_rows": 384,
        "loss": 3.68, "norm": 1.2, "lr": 1.33e-7, "valid": 900, "tokens": 1000,
        "padded_tokens": 1024,
    }  # fmt: skip
    meter.step(**(about | changes))


def records(config: Config) -> list[dict[str, Any]]:
    text = (Path(config.output_dir) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_step_line_is_the_one_people_know(
    meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    step(meter, 12, epoch=1)
    assert STEP_LINE.fullmatch(capsys.readouterr().out.strip())


def test_the_evaluation_line_is_the_one_people_know(
    meter: Meter, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    meter.evaluated(step=20, total=1502, loss=3.41, accuracy=0.25, tokens=100)
    assert capsys.readouterr().out.startswith("Step 20/1502 | Eval Loss: 3.4100 | ")
    (record,) = records(config)
    assert record["eval_perplexity"] == pytest.approx(30.27, abs=0.01)


def test_a_record_says_where_the_time_went(meter: Meter, config: Config) -> None:
    with meter.time("forward"):
        pass
    assert list(meter.timed("data", [1, 2])) == [1, 2]
    with meter.time("save"):
        pass
    step(meter, 1)
    (record,) = records(config)
    assert {"forward_s", "data_s", "save_s"} <= set(record)
    assert record["tok_s"] == pytest.approx(1000 / record["step_s"])


def test_nothing_is_recorded_twice_over_resumes(config: Config) -> None:
    path = Path(config.output_dir) / "metrics.jsonl"
    for first, last in ((1, 7), (5, 9)):
        meter = Meter(config, ALONE)
        meter.resumed(first - 1)
        for number in range(first, last):
            step(meter, number)
        meter.evaluated(step=last - 1, total=9, loss=1.0, accuracy=0.5, tokens=10)
        meter.close()
        with path.open("a") as file:
            file.write('{"kind": "step", "step": 99, "lo')  # killed while writing
    Meter(config, ALONE).resumed(8)
    found = [(record["kind"], record["step"]) for record in records(config)]
    assert found == [("step", number) for number in range(1, 9)] + [("eval", 8)]
    assert [record["resumed_from"] for record in records(config)[:8]] == [None] * 4 + [4] * 4


def test_lines_come_every_so_many_steps(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = Meter(dataclasses.replace(config, logging_steps=5), ALONE)
    for number in range(1, 13):
        step(meter, number, total=12)
    meter.close()
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[1] for line in said] == ["5/12", "10/12", "12/12"]
    assert len(records(config)) == 12
    looked = records(config)[9]
    assert looked["window"] == metrics.WINDOW
    assert looked["places"] == looked["padded_tokens"] == 10 * 1024


def test_a_loss_that_is_no_number_is_still_json(meter: Meter, config: Config) -> None:
    step(meter, 1, loss=float("nan"))
    meter.evaluated(step=1, total=2, loss=float("nan"), accuracy=0.5, tokens=4)
    text = (Path(config.output_dir) / "metrics.jsonl").read_text()
    step_, evaluation = (json.loads(line, parse_constant=pytest.fail) for line in text.splitlines())
    assert step_["loss"] == "nan"
    assert (evaluation["eval_loss"], evaluation["eval_perplexity"]) == ("nan", "nan")


def test_collectives_are_given_back_as_they_were(config: Config) -> None:
    import torch.distributed as dist

    before = dist.all_reduce
    meter = Meter(config, ALONE)
    assert dist.all_reduce is not before
    meter.close()
    assert dist.all_reduce is before


def test_trackers_get_what_is_recorded(config: Config) -> None:
    got: list[dict[str, Any]] = []
    sent = SimpleNamespace(log=got.append)
    meter = Meter(config, ALONE, trackers=sent)  # type: ignore[arg-type]
    step(meter, 1)
    meter.evaluated(step=1, total=1502, loss=2.5, accuracy=0.5, tokens=100)
    meter.close()
    assert got == records(config)
    assert [record["kind"] for record in got] == ["step", "eval"]
