"""The network: the base model with its adapters, the same on every rank, not yet cut up."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig

from train.config.config import Config
from train.data.collate import MULTIPLE
from train.distributed import context
from train.errors import ConfigError, exit_code
from train.model import export, kinds, lora_targets, memory, nf4, placement, quantized, vision
from train.model.kinds import Weights
from train.model.peft import get_peft_model, without_bitsandbytes
from train.model.quantized import Scheme

BUILT_IN = ("sdpa", "eager")
UNUSABLE = (ImportError, KeyError, OSError, RuntimeError, SafetensorError, ValueError)
"""What transformers and safetensors raise for files that are no model, or not all of one."""
RUNS_ON = re.compile(
    "mamba|ssm|rwkv|deltanet|rglru|shortconv|linearattention|lightningattention|lstm|h1mixer",
    re.IGNORECASE,
)
"""Classes of transformers whose states run on through a row, whatever positions say. Measured with
transformers 5.23 on two documents: Qwen3-Next changes by 2.1 of 2.2, Falcon-H1 by 0.03 of 2.3."""
NO_POSITIONS = frozenset({"gpt_oss"})
"""Models that do not hand positions to their masks (gpt-oss in transformers 5.23: 2.1 of 2.2)."""


def make(config: Config, folder: Path, dtype: torch.dtype) -> nn.Module:
    """Make the model with its adapters: with weights, or without any under a meta device."""
    on_meta = torch.empty(0).is_meta
    trust = config.trust_remote_code
    shape = AutoConfig.from_pretrained(folder, trust_remote_code=trust, local_files_only=True)
    shape.use_cache = False
    stored = quantized.scheme(folder / "config.json", config.name_or_path)
    if stored and config.method == "full":
        raise quantized.refusal(config.name_or_path, f"found method: full and {stored.method}")
    how: dict[str, Any] = {
        # What is trained stays in float32: small updates would vanish in bfloat16.
        "dtype": torch.float32 if config.method == "full" else dtype,
        "attn_implementation": config.attn_implementation,
        "trust_remote_code": trust,
    }
    if on_meta:
        if stored:  # what is made of it is plain
            del shape.quantization_config
        network = vision.auto_class(folder).from_config(shape, **how)
        _refuse_unplaced(config, folder, network, stored)
    else:
        how["output_loading_info"] = True
        network, found = cast(
            "tuple[Any, dict[str, Any]]",
            vision.auto_class(folder).from_pretrained(
                folder, config=shape, local_files_only=True, **how
            ),
        )
        if lacking := sorted(found["missing_keys"]):
            # transformers makes them up, with a warning among many.
            raise ValueError(f"{lacking[0]} is in no file (and {len(lacking) - 1} others)")
        if extra := placement.not_dropped(network, found["unexpected_keys"]):
            raise placement.refusal(config.name_or_path, network, extra)
    _refuse_too_long(config, network)
    _refuse_rows(config, network)
    if config.method == "lora":
        network = with_adapters(config, network)
    else:
        vision.freeze(config, network)
    if config.load_in_4bit:
        nf4.shrink(base_of(network), dtype)
    network.train()
    if config.activation_checkpointing:
        # Before the shards, so that recomputing is inside what FSDP gathers.
        # transformers before 5.23 knows the old name only.
        model = base_of(network)
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return cast("nn.Module", network)


def with_adapters(config: Config, network: Any) -> Any:
    """Return a model with LoRA's adapters in float32, as the configuration wants them."""
    targets = lora_targets.find(config, network)
    with without_bitsandbytes():
        network = get_peft_model(network, lora_targets.lora(config, targets))
    for parameter in network.parameters():
        if parameter.requires_grad:  # PEFT copies modules_to_save in the base's dtype
            parameter.data = parameter.data.float()
    lora_targets.verify(config, targets, network)
    # PEFT records where the files are on this node.
    network.peft_config["default"].base_model_name_or_path = config.name_or_path
    for module in network.modules():
        # Autocast and FSDP cast the adapters' weights. PEFT would cast each input to float32 too,
        # and autocast back: a copy for each adapter, a sixth of all that a Llama's layers keep.
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False
    return network


def _refuse_unplaced(config: Config, folder: Path, network: Any, stored: Scheme | None) -> None:
    """Refuse files with tensors that the model has no place for, or no scale, by their headers."""
    files = [path for path in memory.weight_files(folder) if path.is_file()]
    names = {name: about for path in files for name, about in memory.header(path).items()}
    if unscaled := quantized.without_scale(names, stored):
        raise quantized.refusal(config.name_or_path, f"found {unscaled} without a scale")
    if extra := placement.unplaced(network, stored.kept(names) if stored else names):
        raise placement.refusal(config.name_or_path, network, extra)


def _refuse_rows(config: Config, network: Any) -> None:
    """Refuse rows that this model cannot have: packed ones, or those that ranks share."""
    if config.context_parallel > 1 and (reason := _uncuttable(network)):
        raise context.refusal(f"{reason} in {type(network).__name__}")
    if config.batching == "packed" and vision.parts(network):
        raise vision.packing_refusal()
    if config.batching == "packed" and _is_sure_to_leak(network):
        raise packing_refusal(type(network).__name__)


def _is_sure_to_leak(network: Any) -> bool:
    """Return whether a model's classes are known to let packed documents see each other."""
    names = {type(module).__name__ for module in network.modules()}
    return any(RUNS_ON.search(name) for name in names) or network.config.model_type in NO_POSITIONS


def _uncuttable(network: Any) -> str:
    """Return why a model's rows cannot be cut over ranks, as far as its classes tell."""
    about = network.config.get_text_config()
    kinds_of_layers = {*(getattr(about, "layer_types", None) or ("full_attention",))}
    if vision.parts(network):
        return "a vision tower"
    if any(RUNS_ON.search(type(module).__name__) for module in network.modules()):
        return "states that run on through a row"
    if not network._supports_attention_backend:  # noqa: SLF001  (transformers has no other name)
        return "an attention of its own"
    # Mistral's first models have a window in all layers, and no types.
    window = "layer_types" not in about and getattr(about, "sliding_window", None)
    return "sliding or chunked attention" if window or kinds_of_layers != {"full_attention"} else ""


def packing_refusal(name: str) -> ConfigError:
    """Return the refusal of packed rows for a model that does not keep documents apart."""
    message = (
        "batching: expected a model whose packed documents do not see each other, found one: in "
        f"{name} a document changes the logits of the next one in its row"
    )
    return ConfigError(message, hint="batching: balanced")


def _refuse_too_long(config: Config, network: Any) -> None:
    """Refuse rows that are longer than a model which learns each position by itself (GPT-2) knows.

    It would look beyond its table, and a GPU says of that no more than that an assertion failed.
    """
    known = getattr(network.config, "max_position_embeddings", None) or 0
    words = network.get_input_embeddings()
    tables = [m for m in network.modules() if isinstance(m, nn.Embedding) and m is not words]
    # OPT's has two rows more; one with many more is of words too, as Gemma 3n's for its layers.
    if not known or not any(known <= m.num_embeddings < known + MULTIPLE for m in tables):
        return
    most = known // MULTIPLE * MULTIPLE  # rows are padded to it
    if config.seq_len > most:
        message = (
            f"seq_len: expected at most {most}, since {config.name_or_path} has learned {known}"
        )
        raise ConfigError(f"{message} positions, found {config.seq_len}")


def make_on_meta(config: Config, folder: Path, dtype: torch.dtype) -> nn.Module:
    """Make the model with its adapters but without memory for its weights, in seconds.

    The base's weights need not be there. What transformers or PEFT cannot make is a ConfigError.
    """
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return make(config, folder, dtype)
        except Exception as error:
            if exit_code(error) is not None:
                raise
            raise unusable(config, folder, error) from error


def count_weights(config: Config, folder: Path) -> Weights:
    """Count a model's weights, and which of them would be trained, in seconds.

    What transformers or PEFT cannot make, or train/ could not export, is a ConfigError.
    """
    network = make_on_meta(config, folder, torch.float32)
    if config.method == "full":
        export.refuse_irreversible(config, network)
    return kinds.count(network)


def compute_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the numbers that matrix products are done in."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return cast("torch.dtype", getattr(torch, config.dtype))


def settle_dtype(config: Config, device: torch.device) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with float16 for `dtype: auto` on a GPU that emulates bfloat16."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return config, ()
    name = torch.cuda.get_device_name(device)
    if config.dtype == "bfloat16":
        return config, (f"{name} only emulates bfloat16, which is slow: set dtype: float16",)
    if config.dtype != "auto":
        return config, ()
    remark = f"{name} only emulates bfloat16: dtype: auto is float16, with a loss scale"
    return replace(config, dtype="float16"), (remark,)


def base_of(network: nn.Module) -> Any:
    """Return the transformers model inside the adapters, if there are any."""
    inner = getattr(network, "get_base_model", None)
    return inner() if inner else network


def head_of(network: nn.Module) -> Any:
    """Return the output layer, or the copy of it that is trained in its place."""
    head = base_of(network).get_output_embeddings()
    copies = getattr(head, "modules_to_save", None)
    return copies["default"] if copies else head


def unusable(config: Config, folder: Path, error: Exception) -> ConfigError:
    """Return what a library said of a model as a user can act on it."""
    text = " ".join(str(error).split())
    if not isinstance(error, ImportError | OSError | ValueError):
        text = f"{type(error).__name__}: {text}"
    if "target module" in text.lower():
        names = f"lora_target_modules: expected modules of {config.name_or_path}, found: {text}"
        return ConfigError(names, hint="lora_target_modules: [all-linear] takes every one")
    if "attn_implementation" in text:
        return ConfigError(
            f"attn_implementation: expected {config.attn_implementation}, found: {text}",
            hint="attn_implementation: eager, which every model has",
        )
    if isinstance(error, ImportError):
        if config.attn_implementation not in BUILT_IN:
            asked = f"attn_implementation: expected {config.attn_implementation} and its packages"
            return ConfigError(
                f"{asked} installed, found: {text}",
                hint="install it on every node, or set attn_implementation: sdpa",
            )
        return ConfigError(
            f"the model {config.name_or_path}: expected its packages installed, found: {text}",
            hint="install it on every node, or set attn_implementation: sdpa",
        )
    return ConfigError(
        f"name_or_path: expected a causal language model in {folder}, found: {text}",
        hint="it needs whole *.safetensors: `python -m train --check` looks at the files",
    )
