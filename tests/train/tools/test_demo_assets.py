"""Material for trying things out: made here, the same each time, and it can be trained on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from train.config.parse import parse
from train.preflight import check
from train.tools import demo_assets

pytestmark = pytest.mark.torch


def test_it_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        demo_assets.make(tmp_path / name, pretrain=2, steps=7)
    one, two = tmp_path / "one", tmp_path / "two"
    for file in ("train.jsonl", "eval.jsonl", "model/tokenizer.json", "model/model.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    config = parse(["--config", str(one / "config.yaml")]).config()
    assert config.max_steps == 7
    assert [finding for finding in check(config) if finding.state != "ok"] == []
    sides = [
        {json.loads(line)["text"] for line in (one / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "eval")
    ]
    assert not sides[0] & sides[1]
    assert len(sides[0]) > 1000


def test_without_torch_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "torch" or None)
    assert demo_assets.main([str(tmp_path / "demo")]) == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert problem == "error: not installed here: torch"
    assert hint.endswith("torch")
    assert not (tmp_path / "demo").exists()


def test_below_the_current_folder_the_configuration_holds_wherever_that_is_copied_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    demo_assets.make(Path("demo"), pretrain=0, steps=7)
    here.rename(there)
    monkeypatch.chdir(there)
    config = parse(["--config", "demo/config.yaml"]).config()
    assert not Path(config.output_dir).is_absolute()
    assert [finding for finding in check(config) if finding.state != "ok"] == []


@pytest.mark.parametrize("name", ["../demo", "{}/demo"])
def test_elsewhere_the_configuration_names_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    demo_assets.make(Path(name.format(tmp_path)), pretrain=0, steps=1)
    config = parse(["--config", str(tmp_path / "demo" / "config.yaml")]).config()
    assert config.name_or_path == f"{tmp_path}/demo/model"
