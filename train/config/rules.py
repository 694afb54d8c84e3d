"""What a configuration cannot be: required keys, ranges, and keys that exclude each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from train.config import datasets
from train.object_store import is_url

if TYPE_CHECKING:
    from train.config.config import Config

TRACKERS = ("tensorboard", "wandb", "mlflow")


def conflicts(config: Config) -> list[str]:
    """Return what cannot be as written: required keys, ranges, keys that exclude each other."""
    files = "a .jsonl, .json, .parquet or .csv file, a folder of them, or a hub dataset id"
    found = [
        f"{name}: expected {what}, found nothing"
        for name, what in (
            ("name_or_path", "the base model's folder or hub id"),
            ("dataset_path", files),
            ("output_dir", "a folder for checkpoints and the adapter"),
        )
        if not getattr(config, name)
    ]
    found += datasets.conflicts(config.datasets) if config.dataset_path else ()
    for item in dataclasses.fields(config):
        value, least = getattr(config, item.name), item.metadata["least"]
        if least is not None and value is not None and not value >= least:
            found.append(f"{item.name}: expected {least:g} or more, found {value}")
    found += [
        f"{name}: expected a share below 1, found {getattr(config, name)}"
        for name in ("lora_dropout", "warmup_ratio", "adam_beta1", "adam_beta2", "label_smoothing")
        if getattr(config, name) >= 1
    ]
    if config.eval_split == 1 or (config.eval_split > 1 and config.eval_split % 1):
        wanted = "a share below 1, or a number of samples from 2 on"
        found.append(f"eval_split: expected {wanted}, found {config.eval_split}")
    for name, wanted, wrong in (
        ("min_lr_ratio", "at most 1", config.min_lr_ratio > 1),
        ("num_train_epochs", "more than 0", not config.num_train_epochs),
        ("seed", "a number of 64 bits", config.seed >= 1 << 64),
    ):
        found += [f"{name}: expected {wanted}, found {getattr(config, name)}"] if wrong else []
    found += _exclusions(config) + _of_streams(config) + _of_pairs(config)
    return found + _of_adapters(config)


def _exclusions(config: Config) -> list[str]:
    """Return the keys that exclude each other, or need another one."""
    found = [
        f"{name}: expected a folder, found {value}; upload_to copies checkpoints to object stores"
        for name in ("output_dir", "cache_dir")
        if "://" in (value := getattr(config, name) or "")
    ]
    if config.upload_to is not None and not is_url(config.upload_to):
        found.append(f"upload_to: expected a URL (s3://bucket/run), found {config.upload_to}")
    for one, other in (
        ("warmup_steps", "warmup_ratio"),
        ("save_steps", "save_epochs"),
        ("eval_steps", "eval_epochs"),
        ("eval_dataset_path", "eval_split"),
    ):
        if getattr(config, one) and getattr(config, other):
            found.append(f"{one} and {other}: expected one of them, found both")
    found += [
        f"{name}: expected eval_dataset_path or eval_split with it, found neither"
        for name in ("eval_steps", "eval_epochs")
        if getattr(config, name) and not (config.eval_dataset_path or config.eval_split)
    ]
    rows = config.per_device_train_batch_size
    if config.flash_attention and config.batching == "packed" and rows > 1:
        # transformers tells packed documents apart there only if they are one row.
        found.append(
            "per_device_train_batch_size: expected 1 for packed rows with "
            f"{config.attn_implementation}, whose documents would see each other otherwise, found "
            f"{rows}; a longer seq_len fills the GPU as well, and "
            "attn_implementation: sdpa takes several rows"
        )
    if config.context_parallel > 1 and config.attn_implementation != "sdpa":
        found.append(
            "attn_implementation: expected sdpa with context_parallel, which calls torch's flash "
            f"attention itself, found {config.attn_implementation}"
        )
    if config.context_parallel > 1 and config.in_pairs:
        found.append(f"context_parallel: expected 1 for pairs, found {config.context_parallel}")
    name = "adapter" if config.method == "lora" else "model"
    export = Path(config.output_dir, name).resolve()
    if Path(config.name_or_path).resolve().is_relative_to(export):
        found.append(
            f"output_dir: expected a folder whose {name}/ is not the base model, found "
            f"{config.output_dir}, and the export would replace {config.name_or_path}"
        )
    if unknown := [name for name in config.report_to if name not in TRACKERS]:
        found.append(f"report_to: expected any of {', '.join(TRACKERS)}, found {unknown[0]}")
    return found


def _of_streams(config: Config) -> list[str]:
    """Return what cannot be with data whose end is not known."""
    several = [each for each in config.datasets if each.weight != 1 or len(config.datasets) > 1]
    return [
        f"{name}: expected {wanted} with stream: true, found {found}"
        for name, wanted, found, wrong in (
            ("max_steps", "a number of steps", "none", config.max_steps is None),
            (
                "dataset_path", "one data set, or paths with commas, read one after the other",
                "several or a weight, which need the number of their samples", several,
            ),
            (
                "eval_split", "eval_dataset_path (a file of held-out samples)",
                f"{config.eval_split:g}, which needs the number of samples", config.eval_split,
            ),
            ("node_data", "whole", config.node_data, config.node_data != "whole"),
        )
        if config.stream and wrong
    ]  # fmt: skip


def _of_pairs(config: Config) -> list[str]:
    """Return what cannot be with this objective."""
    found = []
    if config.in_pairs and config.batching == "packed":
        found.append("batching: expected balanced or plain for pairs, found packed")
    if config.label_smoothing and config.objective != "dpo":
        found.append("label_smoothing: expected objective: dpo with it, found another")
    if config.objective == "dpo" and config.method == "full":
        found.append(
            "method: expected lora with objective: dpo, found full: the reference is the model "
            "without its adapter, and no second copy of it is held; orpo needs none"
        )
    if config.objective == "dpo" and config.lora_init_from:
        found.append(
            "lora_init_from: expected none with objective: dpo, whose reference is the base "
            f"without any adapter, found {config.lora_init_from}"
        )
    if config.in_pairs:
        found += [
            f"{name}: expected {wanted} with objective: {config.objective}, whose pairs are texts "
            f"without images, found {value}"
            for name, wanted in (
                ("image_dir", None),
                ("freeze_vision_tower", True),
                ("freeze_multi_modal_projector", True),
            )
            if (value := getattr(config, name)) != wanted
        ]
    return found


def _of_adapters(config: Config) -> list[str]:
    """Return what adapters cannot be, or do not go with."""
    found = []
    if config.load_in_4bit and config.method == "full":
        found.append(
            "load_in_4bit: expected method: lora, found full, which trains what it shrinks"
        )
    for name in ("lora_rank_pattern", "lora_alpha_pattern"):
        values = (getattr(config, name) or {}).values()
        if any(type(value) is not int or value < 1 for value in values):
            found.append(f"{name}: expected whole numbers from 1 on, found {[*values]}")
    named = config.lora_target_modules or config.lora_target_parameters
    if config.method == "lora" and not named:
        found.append("lora_target_modules: expected names of modules or all-linear, found none")
    if both := {*config.lora_target_modules} & {*config.lora_modules_to_save}:
        said = f"expected modules that get no adapter, found {min(both)} in lora_target_modules too"
        found.append(f"lora_modules_to_save: {said}")
    return found
