"""QLoRA: a frozen base whose linear layers are kept in 4 bits (NF4), by bitsandbytes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from train import versions
from train.errors import ConfigError


def refuse_unusable(device: torch.device) -> None:
    """Refuse a training where bitsandbytes is missing, or has no kernel for the device."""
    problem = "expected the package bitsandbytes for load_in_4bit"
    hint = f"{versions.install(bitsandbytes='0.46')}, on every node; or load_in_4bit: false"
    try:
        functional: Any = import_module("bitsandbytes.functional")
    except ImportError as error:
        raise ConfigError(f"load_in_4bit: {problem}, found: {error}", hint=hint) from error
    if device.type == "meta":
        return
    some = torch.linspace(-1, 1, 4096, device=device)
    try:
        again = functional.dequantize_4bit(*functional.quantize_4bit(some, quant_type="nf4"))
    except Exception as error:
        found = " ".join(f"{type(error).__name__}: {error}".split())
        problem = f"expected bitsandbytes to compute on {device}, found: {found}"
        raise ConfigError(f"load_in_4bit: {problem}", hint=hint) from error
    if float((again - some).abs().max()) > 0.2:  # noqa: PLR2004  (more than two of its 16 values lie apart)
        problem = f"expected bitsandbytes to compute on {device}, found other numbers"
        raise ConfigError(f"load_in_4bit: {problem}", hint=hint)


def shrink(base: Any, dtype: torch.dtype) -> None:
    """Make the linear layers of a base on the meta device ones of 4 bits, but for the head.

    The numbers are packed into the dtype that FSDP gathers, two or more in each.
    """
    refuse_unusable(torch.device("meta"))
    bnb: Any = import_module("bitsandbytes.nn")
    head = base.get_output_embeddings()
    each = 2 * dtype.itemsize
    chosen = {
        name: module
        for name, module in base.named_modules()
        if type(module) is nn.Linear
        and module is not head
        and "lora_" not in name
        and "modules_to_save" not in name
        and not module.weight.numel() % each
    }
    if not chosen:
        problem = f"expected linear layers, found none in {type(base).__name__}"
        raise ConfigError(f"load_in_4bit: {problem}", hint="load_in_4bit: false")
    for name, module in chosen.items():
        layer = bnb.Linear4bit(
            module.in_features,
            module.out_features,
            module.bias is not None,
            compute_dtype=dtype,
            quant_type="nf4",
            quant_storage=dtype,
            device="meta",
        )
        size = module.weight.numel() // each
        layer.weight = bnb.Params4bit(
            torch.empty(size, 1, dtype=dtype, device="meta"),
            requires_grad=False,
            quant_type="nf4",
            quant_storage=dtype,
            bnb_quantized=True,
        )
        layer.bias = module.bias
        # In evaluation it would pack the weights in another way, which has no gradient.
        layer.support_avx512bf16_for_cpu = False
        base.set_submodule(name, layer)


def layers(base: Any) -> dict[str, Any]:
    """Return the layers of 4 bits by the names of their weights."""
    return {f"{name}.weight": m for name, m in base.named_modules() if hasattr(m, "quant_state")}


@torch.no_grad()
def packed(layer: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a plain weight in 4 bits, whole, and tell the layer how they are scaled."""
    functional: Any = import_module("bitsandbytes.functional")
    small: Tensor
    small, layer.quant_state = functional.quantize_4bit(
        weight.contiguous(),
        blocksize=64,
        compress_statistics=True,
        quant_type="nf4",
        quant_storage=dtype,
    )
    return small


def plain(layer: Any) -> Tensor:
    """Return the plain weight of a layer, of 4 bits or not; all ranks that share it call this."""
    whole: Tensor
    whole = layer.weight.full_tensor() if isinstance(layer.weight, DTensor) else layer.weight
    if state := getattr(layer, "quant_state", None):
        whole = import_module("bitsandbytes.functional").dequantize_4bit(whole, state)
    return whole
