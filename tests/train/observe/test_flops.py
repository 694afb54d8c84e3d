"""Arithmetic of a token, and what GPUs can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from train.data.mixture import Share, Sizes
from train.observe.flops import peak, per_token, typical


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA GB300", 2500e12),
        ("NVIDIA B300 SXM6 AC", 2250e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A30", 165e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA RTX 6000 Ada Generation", 364e12),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 504e12),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 439e12),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 480e12),
        ("NVIDIA GeForce RTX 5090", 209e12),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, operations: float | None) -> None:
    assert peak(name) == operations


def network(family: str, **shape: Any) -> Any:
    """Return a model without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))


@pytest.mark.torch
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", [4, 8])
def test_a_frozen_weight_takes_four_and_a_trained_one_six(*, tied: bool, heads: int) -> None:
    llama = network(
        "llama", vocab_size=100, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=1, head_dim=4, tie_word_embeddings=tied,
    )  # fmt: skip
    # q and o, k and v, the MLP, two norms; the last norm and the head, but not the embeddings.
    layer = 2 * 16 * heads * 4 + 2 * 16 * 4 + 3 * 16 * 24 + 2 * 16
    products = 2 * layer + 16 + 100 * 16
    attention = 6 * 2 * (heads * 4) * 8
    assert per_token(llama, 8) == 6 * products + attention
    assert per_token(llama.requires_grad_(requires_grad=False), 8) == 4 * products + attention


@pytest.mark.torch
def test_of_experts_only_those_count_that_a_token_is_sent_to() -> None:
    air = network("glm4_moe", head_dim=128, attention_bias=True)
    assert sum(p.numel() for p in air.parameters()) > 106e9
    attention = 4096 * 128 * (96 + 8 + 8) + 128 * (96 + 8 + 8) + 128 * 96 * 4096
    every_layer = attention + 2 * 4096
    dense = 3 * 4096 * 10944
    sparse = 128 * 4096 + (8 + 1) * 3 * 4096 * 1408  # the router, 8 of 128 experts, 1 shared
    active = 46 * every_layer + dense + 45 * sparse + 4096 + 151552 * 4096
    products = 6 * 46 * 96 * 128 * 1000
    assert per_token(air, 1000) == 6 * active + products
    for name, parameter in air.named_parameters():
        parameter.requires_grad_("experts.down_proj" in name)
    trained = 45 * (8 + 1) * 4096 * 1408
    assert per_token(air, 1000) == 4 * active + 2 * trained + products


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "shape", "experts"),
    [
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}, 3 * 16 * 24),
        (
            "qwen3_moe",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
            3 * 16 * 12,
        ),
    ],
)
def test_experts_are_known_by_each_name_of_their_number(
    family: str, shape: dict[str, int], experts: int
) -> None:
    sizes = {
        "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    two, four = (
        per_token(network(family, **sizes, **(shape | {"num_experts_per_tok": count})), 8)
        for count in (2, 4)
    )
    assert two is not None
    assert four is not None
    assert four - two == 6 * 2 * 2 * experts


@pytest.mark.torch
def test_of_experts_whose_number_is_unknown_nothing_is_said() -> None:
    mixtral = network("mixtral", num_hidden_layers=1, hidden_size=64, num_attention_heads=4)
    mixtral.config = SimpleNamespace(num_hidden_layers=1, hidden_size=64)
    assert per_token(mixtral, 8) is None


@pytest.mark.torch
def test_each_layer_counts_its_own_heads() -> None:
    gemma = network(
        "gemma4_text", vocab_size=100, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, hidden_size_per_layer_input=4,
        layer_types=["sliding_attention", "full_attention"], head_dim=8, global_head_dim=12,
    )  # fmt: skip
    nothing, ten = per_token(gemma, 0), per_token(gemma, 10)
    assert nothing is not None
    assert ten == nothing + 6 * 10 * 2 * (8 + 12)


@pytest.mark.torch
def test_a_model_without_attention_is_counted() -> None:
    shape = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "num_hidden_layers": 2}
    mamba = network("mamba2", vocab_size=100, state_size=8, n_groups=1, **shape)
    assert per_token(mamba, 1000) == per_token(mamba, 10)


def sizes(lengths: list[int], *shares: Share) -> Sizes:
    found = np.array(lengths)
    return Sizes(lengths=found, targets=found, numbers=found * 0, shares=shares)


def test_a_token_is_likelier_in_a_long_sample() -> None:
    for lengths, wanted in (([8, 8], 8), ([2, 8], (2 * 2 + 8 * 8) / 10)):
        assert typical(sizes(lengths, Share(samples=2))) == wanted


def test_a_data_set_of_weight_three_counts_three_times() -> None:
    found = typical(sizes([2, 8, 4], Share(samples=1, weight=3), Share(samples=2, weight=0.5)))
    assert found == (3 * 2 * 2 + 0.5 * (8 * 8 + 4 * 4)) / (3 * 2 + 0.5 * (8 + 4))
