"""What libraries say of a model that cannot be loaded or run, as a person can act on it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from train.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from train.config import Config


def unusable(config: Config, folder: Path, error: Exception) -> ConfigError:
    """Return what a library said of a model as a person can act on it."""
    text = " ".join(str(error).split())
    if "target module" in text.lower():
        names = f"lora_target_modules: expected modules of {config.name_or_path}, found: {text}"
        return ConfigError((names,), hint="lora_target_modules: [all-linear] takes every one")
    if "attn_implementation" in text:
        return ConfigError(
            (f"attn_implementation: expected {config.attn_implementation}, found: {text}",),
            hint="attn_implementation: eager, which every model has",
        )
    if isinstance(error, ImportError):
        return ConfigError(
            (f"the model {config.name_or_path}: expected its packages installed, found: {text}",),
            hint="install it on every node, or set attn_implementation: sdpa",
        )
    return ConfigError(
        (f"name_or_path: expected a causal language model in {folder}, found: {text}",),
        hint="it needs whole *.safetensors: `python -m train --check` looks at the files",
    )


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Say a lack of memory as a person can act on it.

    Raises:
        ConfigError: There was none for what was done within.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        found = " ".join(str(error).split())
        raise ConfigError(
            (f"{what}: expected room in this GPU's memory, found: {found}",),
            hint="a smaller per_device_train_batch_size (in evaluation per_device_eval_batch_size) "
            "or seq_len, activation_checkpointing: true, or more ranks; `python -m train --check` "
            "estimates what it takes",
        ) from error
