"""An adapter given as the model is refused with a command that merges it, and that works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train.seeing import make_seeing
from tests.train.tiny import make_model, make_tokenizer
from tests.train.world import World
from train.checkpoint import provenance
from train.config.config import Config
from train.data import hub
from train.errors import ConfigError
from train.model import memory
from train.tools import merge, merge_files

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]


def test_the_command_in_the_refusal_makes_a_model_that_computes_the_same_and_is_trained_on(
    world: World, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = world.run(max_steps=2)
    adapter = run.output / "adapter"
    refused = world.start(name_or_path=str(adapter))
    assert refused.wait() == [2]
    assert "found a LoRA adapter: merge it with its base" in refused.said()
    hint = next(line for line in refused.said().splitlines() if line.startswith("hint: "))
    words = shlex.split(hint.removeprefix("hint: "))
    assert words[:3] == ["python", "-m", "train.tools.merge"]
    assert merge.main(words[3:]) == 0
    assert "\nverified: logits are off by " in capsys.readouterr().out
    merged = Path(words[-1])
    base = AutoModelForCausalLM.from_pretrained(tiny / "model")
    tokens = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        before = base(tokens).logits
        wanted = PeftModel.from_pretrained(base, str(adapter))(tokens).logits
        found = AutoModelForCausalLM.from_pretrained(merged)(tokens).logits
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(found, before, atol=1e-5)
    again = world.run(name_or_path=str(merged), max_steps=1)
    assert "Step 1/1" in again.said()


def test_what_cannot_be_merged_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge.main([str(tmp_path), str(tmp_path / "new")]) == 2
    assert f"{tmp_path}: expected adapter_config.json in it" in capsys.readouterr().err
    shape = {"peft_type": "LORA", "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(shape))
    assert merge.main([str(tmp_path), str(tmp_path / "new")]) == 2
    assert f"--model: expected the base of {tmp_path}" in capsys.readouterr().err
    base = ["--model", str(tiny / "model")]
    assert merge.main([str(tmp_path), str(tmp_path / "new"), *base]) == 2
    assert f"expected an adapter of {tiny / 'model'}, found: " in capsys.readouterr().err
    assert merge.main([str(tmp_path), str(tmp_path), *base]) == 2
    assert "expected a new folder, found that it exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter_config.json"]


def test_files_are_merged_one_by_one_and_another_base_is_refused(
    world: World, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    small = AutoModelForCausalLM.from_pretrained(tiny / "model").bfloat16()
    small.save_pretrained(base, max_shard_size="60KB")
    shutil.copy(tiny / "model" / "tokenizer.json", base)
    adapter = world.run(max_steps=2).output / "adapter"
    words = [str(adapter), str(tmp_path / "new"), "--model", str(base)]
    assert merge.main(words) == 2
    assert "expected the files that" in capsys.readouterr().err
    assert merge.main([*words, "--other-base"]) == 0
    assert "all weights are read at once" not in capsys.readouterr().out
    files = sorted(path.name for path in base.glob("*.safetensors*"))
    assert len(files) > 2
    assert sorted(path.name for path in (tmp_path / "new").glob("*.safetensors*")) == files
    for name in files[:-1]:
        with safe_open(tmp_path / "new" / name, "pt") as new, safe_open(base / name, "pt") as old:
            assert {*new.keys()} == {*old.keys()}
            assert {new.get_slice(key).get_dtype() for key in new.keys()} == {"BF16"}  # noqa: SIM118


def test_a_router_that_a_model_in_bfloat16_has_in_float32_is_merged_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    shape = Qwen3MoeConfig(
        vocab_size=512, hidden_size=32, intermediate_size=64, moe_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    base, adapter, new = (tmp_path / name for name in ("base", "adapter", "new"))
    model = Qwen3MoeForCausalLM(shape).bfloat16()
    for layer in model.model.layers:
        layer.mlp.gate.weight.data = torch.randn(layer.mlp.gate.weight.shape)
    model.save_pretrained(base)
    make_tokenizer(base)
    trained = ["mlp.experts.gate_up_proj", "mlp.gate.weight"]
    rules = LoraConfig(r=2, target_parameters=trained, init_lora_weights=False)
    wide = Qwen3MoeForCausalLM.from_pretrained(base, dtype=torch.float32)
    get_peft_model(wide, rules).save_pretrained(adapter)
    assert merge.main([str(adapter), str(new), "--model", str(base)]) == 0
    said = capsys.readouterr().out
    assert "all weights are read at once" in said
    assert "\nverified: logits are off by " in said
    (file,) = new.glob("*.safetensors")
    kinds = {name: one["dtype"] for name, one in memory.header(file).items()}
    assert kinds["model.layers.0.mlp.gate.weight"] == "F32"
    assert kinds["model.layers.0.self_attn.q_proj.weight"] == "BF16"


def test_logits_that_are_not_those_of_base_and_adapter_leave_no_model(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = world.run(max_steps=2).output / "adapter"
    monkeypatch.setattr(merge_files, "_merged", lambda _, weight: weight)
    assert merge.main([str(adapter), str(tmp_path / "new")]) == 2
    assert "expected the logits of the base with its adapter" in capsys.readouterr().err
    assert not list(tmp_path.glob("new*"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a base of many layers in bfloat16, and an adapter of it that can be merged."""
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("deep")
    base, adapter = make_model(folder / "base", layers=32), folder / "adapter"
    plain = merge.load_base(str(base), dtype=torch.bfloat16)
    plain.save_pretrained(base)
    shape = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    network = get_peft_model(plain, shape)
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.01 * torch.randn(parameter.shape)
    network.save_pretrained(adapter)
    assert "verified" in merge.merge(adapter, folder / "right", str(base))[1]
    return base, adapter


@pytest.mark.parametrize("wrong", ["missing", "doubled", "rounded"])
def test_one_wrong_weight_of_many_layers_in_bfloat16_is_found(
    deep: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """What rounding of the sum changes of the logits would hide it."""
    base, adapter = deep
    own, layers = merge_files._merged, []

    def spoilt(layer: Any, weight: torch.Tensor) -> torch.Tensor:
        layers.append(layer)
        if len(layers) == 100 and wrong == "missing":
            return weight
        if len(layers) == 100 and wrong == "doubled":
            layer.lora_B["default"].weight.data *= 2
        if wrong == "rounded":  # an adapter that was read in the dtype of its base
            layer.lora_B.bfloat16().float()
        return own(layer, weight)

    monkeypatch.setattr(merge_files, "_merged", spoilt)
    with pytest.raises(ConfigError, match="expected the logits of the base with its adapter"):
        merge.merge(adapter, tmp_path / "wrong", str(base))


def test_a_models_folder_with_an_adapter_beside_is_a_model(tmp_path: Path) -> None:
    config = Config(name_or_path=str(tmp_path), dataset_path="d")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="found a LoRA adapter"):
        hub.model_folder(config)
    (tmp_path / "config.json").write_text("{}")
    assert hub.model_folder(config) == tmp_path


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (
            "plain",
            {
                "use_dora": True,
                "rank_pattern": {"down_proj": 2},
                "alpha_pattern": {"q_proj": 32},
                "modules_to_save": ["lm_head", "embed_tokens"],
            },
        ),
        ("tied", {"modules_to_save": ["embed_tokens"]}),
        ("llava", {}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings")
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied")
def test_every_kind_of_adapter_is_merged(
    tmp_path: Path, kind: str, how: dict[str, Any], dtype: str
) -> None:
    from peft import LoraConfig, get_peft_model

    base, adapter, output = tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"
    if kind == "llava":
        make_seeing(base, kind)
    else:
        make_model(base, tied=kind == "tied")
    shape = LoraConfig(task_type="CAUSAL_LM", target_modules=".*(layers.*q_proj|down_proj)", **how)
    plain = merge.load_base(str(base), dtype=getattr(torch, dtype))
    plain.save_pretrained(base)
    network = get_peft_model(plain, shape)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape)
    network.save_pretrained(adapter)
    _, compared = merge.merge(adapter, output, str(base))
    (off,) = re.findall(r"verified: logits are off by (\S+) of", compared)
    assert float(off) < (1e-5 if dtype == "float32" else 2e-2)
    assert (output / "processor_config.json").exists() == (kind == "llava")


def test_an_adapter_says_on_which_base_it_was_trained(tmp_path: Path) -> None:
    assert not provenance.is_of_another(tmp_path, "ours")
    for told, other in (('{"base": "ours"}', False), ('{"base": "x"}', True), ("[]", False)):
        (tmp_path / "metadata.json").write_text(told)
        assert provenance.is_of_another(tmp_path, "ours") is other
