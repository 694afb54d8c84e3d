"""The reference has every key, and the example is one that works."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

from train.config.config import Config
from train.config.parse import parse

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_keys_say() -> None:
    path = ROOT / "docs" / "make_train_config.py"
    spec = importlib.util.spec_from_file_location("make_train_config", path)
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "reference" / "train-config.md").read_text(encoding="utf-8")
    assert page == script.render(), "run python docs/make_train_config.py"
    for item in dataclasses.fields(Config):
        assert f"| `{item.name}` |" in page
        assert script.texts()[item.name]


def test_the_example_is_a_configuration() -> None:
    config = parse(["--config", str(ROOT / "train" / "config.example.yaml")]).config()
    assert config.global_batch_size == 128
    assert config.lora_target_modules == ("all-linear",)
