"""The configuration: what it refuses, all at once, and that no key has two meanings."""

from __future__ import annotations

import pytest

from train.config.config import Config
from train.errors import ConfigError


def make(**keys: object) -> Config:
    return Config(**({"name_or_path": "model", "dataset_path": "data.jsonl"} | keys))  # type: ignore[arg-type]


def test_required_keys_and_conflicts_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(lora_r=0, warmup_steps=3, warmup_ratio=0.1, eval_steps=5, lora_dropout=1.0)
    names = [problem.split(":")[0] for problem in caught.value.problems]
    assert names == [
        "name_or_path",
        "dataset_path",
        "lora_r",
        "lora_dropout",
        "warmup_steps and warmup_ratio",
        "eval_steps",
    ]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"eval_split": 1.0}, "a share below 1"),
        ({"eval_split": 2.5}, "a number of samples from 2 on, found 2.5"),
        ({"save_steps": 5, "save_epochs": 1}, "expected one of them, found both"),
        ({"num_train_epochs": 0}, "more than 0"),
        ({"num_train_epochs": -0.5}, "0 or more"),
        (
            {"eval_steps": 5, "eval_epochs": 1, "eval_split": 0.1},
            "eval_steps and eval_epochs: expected one of them, found both",
        ),
        ({"eval_epochs": 1}, "eval_epochs: expected eval_dataset_path or eval_split with it"),
        ({"min_lr_ratio": 1.5}, "at most 1"),
        ({"seed": 1 << 64}, "64 bits"),
        ({"lora_target_modules": ()}, "all-linear"),
        (
            {"lora_target_modules": ("q_proj", "lm_head"), "lora_modules_to_save": ("lm_head",)},
            "expected modules that get no adapter, found lm_head in lora_target_modules too",
        ),
        ({"objective": "dpo", "lora_init_from": "a"}, "the base without any adapter, found a"),
        ({"objective": "orpo", "image_dir": "a"}, "pairs are texts without images, found a"),
        ({"objective": "dpo", "freeze_vision_tower": False}, "expected True with objective: dpo"),
        ({"learning_rate": float("nan")}, "0 or more"),
        *(
            (
                {
                    "attn_implementation": attention,
                    "batching": "packed",
                    "per_device_train_batch_size": 2,
                },
                "would see each other",
            )
            for attention in (
                "flash_attention_2",
                "kernels-community/flash-attn2",
                "kernels-community/vllm-flash-attn3@main",
                "someone/attention",
            )
        ),
    ],
)
def test_values_that_cannot_be_are_refused(keys: dict[str, object], wanted: str) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        make(**keys)
    assert wanted in str(caught.value)


def test_object_stores_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"output_dir: expected a folder.*upload_to copies"):
        make(output_dir="s3://bucket/run")
