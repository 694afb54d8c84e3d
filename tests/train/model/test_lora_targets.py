"""What gets an adapter is found on the model's own modules, before any of its weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from train.config.config import Config
from train.errors import ConfigError
from train.model.kinds import Weights

pytestmark = pytest.mark.torch


def targets(base: Config, *names: str) -> Config:
    return replace(base, lora_target_modules=names)


def survey(config: Config, folder: Path) -> Weights:
    from train.model.load import count_weights as real

    return real(config, folder)


def test_a_modules_name_is_checked_and_the_nearest_said(base: Config, tiny: Path) -> None:
    with pytest.raises(ConfigError) as told:
        survey(targets(base, "q_projj", "down_proj", "qkv"), tiny / "model")
    start = "lora_target_modules: expected modules of the model, found no "
    first, second = told.value.problems
    assert first == f"{start}q_projj; nearest: q_proj, v_proj"
    assert second.startswith(f"{start}qkv")


def test_names_are_matched_as_peft_matches_them(base: Config, tiny: Path) -> None:
    found = survey(targets(base, "q_proj", "self_attn.v_proj"), tiny / "model")
    # Two layers, r = 16: 32 in and 32 out, 32 in and 16 out.
    assert found.trained == {"attention": 2 * 16 * (32 + 32 + 32 + 16)}
    with pytest.raises(ConfigError):
        survey(targets(base, "proj"), tiny / "model")


def test_an_adapter_on_a_head_that_is_the_embeddings_too_is_refused(
    base: Config, tiny: Path
) -> None:
    with pytest.raises(ConfigError, match="shares the input embeddings' weights, found lm_head"):
        survey(targets(base, "lm_head"), tiny / "tied")
    found = survey(targets(base, "lm_head"), tiny / "model")
    assert set(found.trained) == {"embeddings and head"}


def test_no_weights_are_read(base: Config, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny / "model" / "config.json").read_text())
    assert survey(base, tmp_path) == survey(base, tiny / "model")


def test_an_attention_that_is_not_installed_is_told(base: Config, tiny: Path) -> None:
    config = replace(base, attn_implementation="flash_attention_2")
    with pytest.raises(
        ConfigError, match="attn_implementation: expected flash_attention_2"
    ) as told:
        survey(config, tiny / "model")
    assert "attn_implementation: sdpa" in str(told.value)
    with pytest.raises(ConfigError, match="attn_implementation: expected spda"):
        survey(replace(base, attn_implementation="spda"), tiny / "model")


def test_a_model_without_the_usual_attention_is_told(base: Config, tmp_path: Path) -> None:
    about = {"model_type": "gpt_oss", "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="attn_implementation: expected sdpa") as told:
        survey(base, tmp_path)
    assert told.value.hint == "attn_implementation: eager, which every model has"


GLM = {
    "model_type": "glm4_moe", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 100,
    "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
R = 16
ATTENTION = 3 * R * ((32 + 32) + 2 * (32 + 16) + (32 + 32))
SHARED = 2 * R * 3 * (32 + 16)
DENSE = R * 3 * (32 + 64)
EXPERTS = 2 * 4 * R * ((32 + 2 * 16) + (16 + 32))
ROUTER = 2 * R * (32 + 4)


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    """Return the folder of a GLM-4-MoE without weights: one dense layer, two of experts."""
    (tmp_path / "config.json").write_text(json.dumps(GLM))
    return tmp_path


def test_in_a_mixture_of_experts_all_linear_leaves_experts_and_router_out(
    base: Config, glm: Path
) -> None:
    found = survey(base, glm)
    assert found.trained == {
        "attention": ATTENTION, "shared experts": SHARED, "dense MLP": DENSE,
    }  # fmt: skip
    assert found.folded == 2 * 3 * 32 * 16 + 3 * 32 * 64
    assert found.words().startswith(f"attention {ATTENTION:,}, shared experts {SHARED:,}, ")


def test_a_name_means_the_module_of_that_name_and_not_what_peft_renames_it_to(
    base: Config, glm: Path
) -> None:
    found = survey(targets(base, "gate_proj", "up_proj", "down_proj"), glm)
    assert found.trained == {"shared experts": SHARED, "dense MLP": DENSE}
    found = survey(targets(base, "shared_experts.gate_proj"), glm)
    assert found.trained == {"shared experts": SHARED // 3}
    assert survey(targets(base, "gate"), glm).trained == {"router": ROUTER}


def test_routed_experts_and_the_router_are_trained_where_they_are_named(
    base: Config, glm: Path
) -> None:
    named = ("experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight")
    config = replace(targets(base, "q_proj"), lora_target_parameters=named)
    found = survey(config, glm)
    assert found.trained == {
        "attention": 3 * R * 64, "routed experts": EXPERTS, "router": ROUTER,
    }  # fmt: skip
    assert found.folded == 2 * (4 * 3 * 32 * 16 + 4 * 32)
    alone = replace(config, lora_target_modules=())
    assert set(survey(alone, glm).trained) == {"routed experts", "router"}
    with pytest.raises(ConfigError, match=r"found no experts\.up_proj; nearest: ") as told:
        survey(replace(base, lora_target_parameters=("experts.up_proj",)), glm)
    assert "experts.gate_up_proj" in str(told.value)


def test_routed_experts_that_are_no_modules_are_told_their_weights(
    base: Config, tmp_path: Path
) -> None:
    about = {"model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 2}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="found no w1") as told:
        survey(targets(base, "q_proj", "w1"), tmp_path)
    wanted = "lora_target_parameters: [experts.down_proj, experts.gate_up_proj]"
    assert told.value.hint == f"routed experts are {wanted}"
    assert set(survey(base, tmp_path).trained) == {"attention"}


def test_dropout_is_refused_where_peft_has_none(base: Config, glm: Path) -> None:
    dropping = replace(base, lora_dropout=0.1)
    with pytest.raises(ConfigError, match="lora_dropout: expected 0 with adapters on single"):
        survey(dropping, glm)
    config = replace(dropping, lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert survey(config, glm).trained == {"attention": ATTENTION}
