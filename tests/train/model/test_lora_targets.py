"""What is asked of a model is looked for on its modules, before any of its weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from train.config.config import Config
from train.errors import ConfigError
from train.model import lora_targets
from train.preflight import check

pytestmark = pytest.mark.torch


def targets(base: Config, *names: str) -> Config:
    return replace(base, lora_target_modules=names)


def test_a_modules_name_is_checked_and_the_nearest_said(base: Config) -> None:
    findings = {
        finding.said: finding.state
        for finding in check(targets(base, "q_projj", "down_proj", "qkv"))
        if finding.about == "modules"
    }
    start = "lora_target_modules: expected modules of the model, found no "
    (first, second) = findings
    assert first == f"{start}q_projj; nearest: q_proj, v_proj"
    assert second.startswith(f"{start}qkv")
    assert set(findings.values()) == {"fail"}


def test_names_are_matched_as_peft_matches_them(base: Config, tiny: Path) -> None:
    said = lora_targets.look(targets(base, "q_proj", "self_attn.v_proj"), tiny / "model")
    assert said == "adapters on 4 modules of 16"
    with pytest.raises(ConfigError):
        lora_targets.look(targets(base, "proj"), tiny / "model")


def test_an_adapter_on_a_head_that_is_the_embeddings_too_is_refused(
    base: Config, tiny: Path
) -> None:
    with pytest.raises(ConfigError, match="shares the input embeddings' weights, found lm_head"):
        lora_targets.look(targets(base, "lm_head"), tiny / "tied")
    assert (
        lora_targets.look(targets(base, "lm_head"), tiny / "model") == "adapters on 1 modules of 16"
    )


def test_no_weights_are_read(base: Config, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny / "model" / "config.json").read_text())
    assert "16" in lora_targets.look(targets(base, "q_proj"), tmp_path)


def test_an_attention_that_is_not_installed_is_told(base: Config, tiny: Path) -> None:
    config = replace(base, attn_implementation="flash_attention_2")
    with pytest.raises(
        ConfigError, match="attn_implementation: expected flash_attention_2"
    ) as told:
        lora_targets.look(config, tiny / "model")
    assert "attn_implementation: sdpa" in str(told.value)
    with pytest.raises(ConfigError, match="attn_implementation: expected spda"):
        lora_targets.look(replace(base, attn_implementation="spda"), tiny / "model")


def test_a_model_without_the_usual_attention_is_told(base: Config, tmp_path: Path) -> None:
    about = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert not lora_targets.is_usual(base, tmp_path)
    with pytest.raises(ConfigError, match="attn_implementation: expected sdpa") as told:
        lora_targets.look(base, tmp_path)
    assert told.value.hint == "attn_implementation: eager, which every model has"
    assert lora_targets.is_usual(replace(base, attn_implementation="eager"), tmp_path)


def test_the_usual_needs_no_look(base: Config) -> None:
    assert not [finding for finding in check(base) if finding.about == "modules"]
