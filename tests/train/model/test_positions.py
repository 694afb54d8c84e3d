"""How many positions a model was made for, by its config.json as old and new versions write it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.train.world import World
from train.model.memory import position_count

QWEN = {"max_position_embeddings": 32768}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("about", "known"),
    [
        (QWEN, 32768),
        (QWEN | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}, 32768),
        (QWEN | {"rope_scaling": {"type": "yarn", **YARN}}, 131072),
        (QWEN | {"rope_parameters": {"rope_type": "yarn", **YARN}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}}, 16384),
        (  # DeepSeek's and gpt-oss's have the whole in it already
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {
                    "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096
                },
            },
            163840,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 32, "original_max_position_embeddings": 8192
                },
            },
            131072,
        ),
        (  # one for each kind of layer, as Gemma 3's in transformers 5
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}},
            },
            131072,
        ),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"n_positions": 1024}, 1024),
        ({"model_type": "mamba"}, 0),
    ],
)  # fmt: skip
def test_positions_are_those_after_rope_scaling(about: dict[str, Any], known: int) -> None:
    assert position_count(about) == known


@pytest.mark.torch
def test_only_longer_samples_are_a_remark(world: World) -> None:
    data = world.folder / "long.jsonl"
    data.write_text(json.dumps({"prompt": "why", "completion": " so" * 400}))
    how: dict[str, Any] = {"dataset_path": str(data), "max_steps": 1, "eval_split": 0.0}
    long = world.run(seq_len=264, **how)
    assert "the longest sample has 264 tokens, and the model was made for 256 positions" in (
        long.said()
    )
    assert "the model was made for" not in world.run(seq_len=256, **how).said()
