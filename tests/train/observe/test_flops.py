"""Arithmetic of a token, and what GPUs can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, operations: float | None) -> None:
    assert peak(name) == operations


def network(*, tied: bool, trained: bool, **config: Any) -> Any:
    def weight(count: int) -> Any:
        return SimpleNamespace(numel=lambda: count, requires_grad=trained)

    table = weight(1000)
    head = table if tied else weight(1000)
    unique = [weight(5000), table, *([] if tied else [head])]
    return SimpleNamespace(
        config=SimpleNamespace(num_hidden_layers=2, hidden_size=10, **config),
        parameters=lambda: unique,
        get_input_embeddings=lambda: SimpleNamespace(weight=table),
        get_output_embeddings=lambda: SimpleNamespace(weight=head),
    )


@pytest.mark.parametrize("tied", [True, False])
def test_a_frozen_weight_takes_four_and_a_trained_one_six(*, tied: bool) -> None:
    attention = 6.0 * 2 * 10 * 8
    assert per_token(network(tied=tied, trained=True), 8) == 6 * 6000 + attention
    assert per_token(network(tied=tied, trained=False), 8) == 4 * 6000 + attention


def test_of_experts_nothing_is_said() -> None:
    assert per_token(network(tied=True, trained=True, num_local_experts=8), 8) is None


def test_heads_may_be_wider_together_than_the_model() -> None:
    wide = network(tied=True, trained=True, num_attention_heads=4, head_dim=5)
    assert per_token(wide, 8) == 6 * 6000 + 6.0 * 2 * 20 * 8


def test_a_token_is_likelier_in_a_long_sample() -> None:
    assert typical(np.array([8, 8])) == 8
    assert typical(np.array([2, 8])) == (2 * 2 + 8 * 8) / 10
