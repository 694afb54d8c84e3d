"""Spellings that people bring along: taken, or told where they belong."""

from __future__ import annotations

import pytest

from train.config.foreign import Given, NoEffect, resolve


@pytest.mark.parametrize(
    ("spelling", "value", "name", "ours"),
    [
        ("model_name", "m", "name_or_path", "m"),
        ("per-device-batch-size", "2", "per_device_train_batch_size", "2"),
        ("sample_packing", "true", "batching", "packed"),
        ("group_by_length", "false", "batching", "plain"),
        ("bf16", "True", "dtype", "bfloat16"),
        ("bf16", "false", "dtype", "float32"),
        ("bf16", "auto", "dtype", "auto"),
        ("dtype", "bf16", "dtype", "bfloat16"),
        ("save_strategy", "epoch", "save_epochs", "1"),
        ("save_strategy", "no", "save_minutes", "0"),
        ("eval_strategy", "epoch", "eval_epochs", "1"),
        ("evaluation_strategy", "epoch", "eval_epochs", "1"),
        ("evals_per_epoch", "1", "eval_epochs", "1"),
        ("use_lora", "no", "method", "full"),
        ("gradient_checkpointing", "true", "activation_checkpointing", "true"),
        ("neat_packing", "true", "batching", "packed"),
        ("use_peft", "true", "method", "lora"),
        ("flash_attn", "fa2", "attn_implementation", "flash_attention_2"),
        ("model_revision", "main", "revision", "main"),
    ],
)
def test_a_known_spelling_becomes_our_key(spelling: str, value: str, name: str, ours: str) -> None:
    answer = resolve(spelling, value)
    assert isinstance(answer, Given)
    assert (answer.name, answer.value) == (name, ours)


@pytest.mark.parametrize(
    ("spelling", "value", "said"),
    [
        ("ray_address", "auto", "launcher"),
        ("hf_token", "secret", "HF_TOKEN"),
        ("load_in_8bit", "true", "load_in_4bit"),
        ("eval_strategy", "half", "eval_steps"),
        ("evals_per_epoch", "4", "eval_steps: steps of an epoch divided by it"),
        ("save_safetensors", "false", "exports are safetensors"),
        ("learning_rat", "1", "nearest: learning_rate"),
        ("xyzzy", "1", "unknown key"),
        ("kto_tau", "0.1", "only next-token loss, DPO and ORPO"),
        ("pref_loss", "ipo", "sigmoid (DPO) and orpo"),
        ("max_samples", "1000", "prepare the data that way"),
        ("dataset_config", "wikitext-2", "data is read from files"),
        ("flash_attn", "fa3", "write attn_implementation"),
    ],
)
def test_another_one_is_told_why_not(spelling: str, value: str, said: str) -> None:
    answer = resolve(spelling, value)
    assert isinstance(answer, str)
    assert said in answer
    assert "secret" not in answer.replace("no secrets", "")


@pytest.mark.parametrize(
    ("spelling", "value"),
    [("fp16", "false"), ("save_strategy", "steps"), ("loss_type", "sigmoid"),
     ("flash_attn", "auto"), ("dataset_config", "default"), ("fsdp_config", None),
     ("save_safetensors", "true"), ("save_safetensors", None)],
)  # fmt: skip
def test_what_changes_nothing_is_let_pass(spelling: str, value: str | None) -> None:
    assert resolve(spelling, value) == NoEffect()
