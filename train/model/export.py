"""The trained adapter as PEFT reads it, and the trained model as transformers does."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from train.config.config import Config
from train.errors import ConfigError
from train.files import write_durably
from train.model import vision

WEIGHTS = "adapter_model.safetensors"
SHAPE = "adapter_config.json"
ABOUT = "metadata.json"
TOKENIZER = (
    "tokenizer*", "tokenization*.py", "special_tokens_map.json", "added_tokens.json", "vocab*",
    "merges.txt", "*.model", "*.tiktoken", "tekken.json", "chat_template*",
    "additional_chat_templates", "*processor_config.json",
)  # fmt: skip
"""What a model's folder holds of its tokenizer and its image processor, of whatever kind."""
MODEL = "model."
"""What names of weights begin with in a checkpoint."""


def export(
    named: Mapping[str, Tensor], folder: Path, shape: Mapping[str, Any], about: Mapping[str, Any]
) -> list[str]:
    """Write an adapter as PEFT does; return the names of its files.

    `shape` is its LoraConfig as a dict, `about` what metadata.json says of the training.
    """
    of_peft = {peft_name(name): tensor for name, tensor in named.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / WEIGHTS, save(of_peft, metadata={"format": "pt"}))
    write_durably(folder / SHAPE, _text(shape))
    write_durably(folder / ABOUT, _text(about))
    return [WEIGHTS, SHAPE, ABOUT]


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copy the base's tokenizer and chat template next to an adapter, where vLLM and TRL look."""
    for path in (path for pattern in TOKENIZER for path in base.glob(pattern)):
        try:
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copyfile(path, folder / path.name)
        except OSError as error:  # the base still has it, and what was trained is only here
            print(f"{path} was not copied next to the adapter: {error}", file=sys.stderr)
            shutil.rmtree(folder / path.name, ignore_errors=True)
            if path.is_file():
                (folder / path.name).unlink(missing_ok=True)


def export_model(
    trained: Mapping[str, Tensor], base: Path, folder: Path, *, trust_remote_code: bool
) -> None:
    """Write a fully trained model as `save_pretrained` does, next to its base's tokenizer and code.

    Names are the hub's: transformers 5 holds the experts of a layer in one tensor, and its own
    reverse conversion takes that apart again.
    """
    shape = AutoConfig.from_pretrained(
        base, trust_remote_code=trust_remote_code, local_files_only=True
    )
    with torch.device("meta"):
        network = vision.auto_class(base).from_config(shape, trust_remote_code=trust_remote_code)
    named = revert_weight_conversion(network, _in_own_dtype(trained, network))
    # Parts of one tensor would be written as one.
    kept = {name: tensor.clone() for name, tensor in named.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(kept, folder)
    for path in base.iterdir():
        if path.suffix in {".json", ".model", ".txt", ".jinja", ".py"} and "index" not in path.name:
            shutil.copyfile(path, folder / path.name)
    for path in folder.glob("*.safetensors"):
        # safetensors makes files that one user alone can read.
        shutil.copymode(folder / "config.json", path)


def refuse_irreversible(config: Config, network: Any) -> None:
    """Refuse a model whose trained weights would not get the hub's names back at the end.

    It may be on the meta device.
    """
    try:
        revert_weight_conversion(network, network.state_dict())
    except Exception as error:  # (each conversion raises its own)
        found = " ".join(f"{type(error).__name__}: {error}".split())
        message = (
            f"method: expected weights of {config.name_or_path} that transformers can save in "
            f"their own form after full training, found one that it cannot reverse: {found}"
        )
        raise ConfigError(message, hint="method: lora exports an adapter instead") from error


def _in_own_dtype(named: Mapping[str, Tensor], network: Any) -> dict[str, Tensor]:
    """Return weights in the base's dtype, but for buffers and what a model keeps in float32."""
    exact = tuple(getattr(network, "_keep_in_fp32_modules_strict", None) or ())
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    dtype = network.config.dtype
    return {
        name: tensor.to(dtype)
        if dtype and name in parameters and not set(name.split(".")) & set(exact)
        else tensor
        for name, tensor in named.items()
    }


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read whatever a checkpoint holds of the model whole, by its name in the model."""
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    found = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        for key, about in stored.items()
        if key.startswith(MODEL) and isinstance(about, TensorStorageMetadata)
    }
    load(found, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    return {key.removeprefix(MODEL): tensor for key, tensor in found.items()}


def peft_name(name: str) -> str:
    """Drop the adapter's own name, as PEFT's files do; an embedding's comes last in it."""
    name = name.replace(".modules_to_save.default.", ".").replace(".default.weight", ".weight")
    return name.replace(".lora_magnitude_vector.weight", ".lora_magnitude_vector").removesuffix(
        ".default"
    )


def _text(value: Mapping[str, Any]) -> str:
    """Return JSON that is the same bytes on every node: PEFT keeps sets, whose order is chance."""
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in value.items()}
    return json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
