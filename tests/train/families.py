"""Tiny random models of the architectures that people train, from transformers' own classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.train.tiny import VOCABULARY

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    "initializer_range": 0.1, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        "num_hidden_layers": 3, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_shared_experts": 1,
    },
    "gpt_oss": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma3_text": {
        "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8, "tie_word_embeddings": True,
    },
    "phi3": {},
    "gpt2": {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,  # random numbers of each rank
    },
    "qwen3_next": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "linear_num_value_heads": 2,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "falcon_h1": {
        "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
        "mamba_d_state": 8, "mamba_chunk_size": 8,
    },
}  # fmt: skip
"""model_type → what its configuration needs besides COMMON."""
EAGER = {"gpt_oss"}
"""Have no other attention in transformers."""
LEAKS = {"gpt_oss", "qwen3_next", "falcon_h1"}
"""Let packed documents see each other, so packing them is refused."""


def make_family(folder: Path, name: str, tokenizer: Path, *, seed: int = 0) -> Path:
    """Write a model of a family as the hub has it, and the tokenizer of another folder beside it.

    Args:
        folder: Where it goes.
        name: One of FAMILIES.
        tokenizer: A folder of `make_model`.
        seed: Of the weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.for_model(name, **COMMON | FAMILIES[name])
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(shape)
    for buffer_name, buffer in network.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)
    network.save_pretrained(folder)
    for path in tokenizer.glob("token*"):
        shutil.copyfile(path, folder / path.name)
    return folder
