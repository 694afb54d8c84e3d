"""The estimate of what layers keep for the backward pass, against what autograd saves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lazy_torch import torch
from train.config.config import Config

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # peft and transformers warn of each other
]

WIDTH = 256
COMMON: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": WIDTH, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0,
}  # fmt: skip
OF_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 176}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "gemma3_text": {"head_dim": 32, "query_pre_attn_scalar": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 4, **OF_EXPERTS},
    "glm4_moe": {
        "head_dim": 32, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 0,
        **OF_EXPERTS,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip
LORA = {"method": "lora"}
FULL = {"method": "full"}


def made(config: Config, shape: Any, *, casts: bool) -> Any:
    """Return a model with the dtypes that its layers see in a training."""
    from transformers import AutoModelForCausalLM

    from train.model import load

    fsdp = config.parallel == "fsdp"
    network = AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa")
    if fsdp or config.method == "lora":
        network = network.to(torch.bfloat16)
    if config.method == "lora":
        network = load.with_adapters(config, network)
    for name, parameter in network.named_parameters():
        if fsdp and "lora_" in name:  # FSDP casts what is trained
            parameter.data = parameter.data.bfloat16()
    for module in network.modules():
        if casts and hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = True
    return network.train()


def counted(config: Config, shape: Any, *, casts: bool = False) -> float:
    """Return the bytes that autograd saves of a bfloat16 model for each token."""
    from train.model.load import base_of

    network = made(config, shape, casts=casts)
    held = [*network.parameters(), *network.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in held}

    def bytes_of(length: int) -> int:
        saved: dict[int, torch.Tensor] = {}  # kept, or another tensor would get its memory

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if (place := tensor.untyped_storage().data_ptr()) not in known:
                saved.setdefault(place, tensor)
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=config.parallel != "fsdp"),
        ):
            tokens = torch.arange(length).unsqueeze(0) % 64
            base_of(network).base_model(input_ids=tokens, use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())

    # Without what is saved once, such as weights cast to bfloat16.
    return (bytes_of(192) - bytes_of(64)) / 128


def estimated(config: Config, shape: Any) -> float:
    """Return the same by the estimate."""
    from transformers import AutoModelForCausalLM

    from train.model import activations, kinds, memory

    with torch.device("meta"):
        weights = kinds.count(AutoModelForCausalLM.from_config(shape))
    widths = activations.Widths.of(shape.to_dict())
    return activations.per_token(widths, memory.method_of(config, weights, activations.LOW))


def shape_of(family: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **COMMON | FAMILIES[family], use_cache=False)


def config_of(**changes: Any) -> Config:
    return Config(name_or_path="m", dataset_path="d", dtype="bfloat16", **changes)


@pytest.mark.parametrize("how", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_layer_keeps_is_estimated(family: str, how: dict[str, Any]) -> None:
    config, shape = config_of(parallel="fsdp", **how), shape_of(family)
    assert estimated(config, shape) == pytest.approx(counted(config, shape), rel=0.25)


@pytest.mark.parametrize(
    "how",
    [LORA, {**LORA, "lora_dropout": 0.1}, {**LORA, "lora_r": 64}, FULL],
    ids=["lora", "dropout", "rank", "full"],
)
def test_the_same_under_autocast(how: dict[str, Any]) -> None:
    config, shape = config_of(parallel="ddp", **how), shape_of("llama")
    assert estimated(config, shape) == pytest.approx(counted(config, shape), rel=0.1)


def test_adapters_keep_no_copies_of_their_inputs() -> None:
    """PEFT casts each adapter's input to float32, and autocast each one back."""
    config, shape = config_of(parallel="single"), shape_of("llama")
    assert counted(config, shape, casts=True) - counted(config, shape) == 8 * WIDTH * 2
