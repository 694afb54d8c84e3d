"""The first values of LoRA's adapters, and of what else is trained besides the base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from train.config.config import Config
from train.errors import ModelError
from train.model import export, nf4
from train.model.lora_targets import no_adapter
from train.model.parallelize import local, local_shard


@torch.no_grad()
def fill(network: nn.Module, config: Config) -> None:
    """Give what is trained besides the base its first values: the same in every layout.

    They are those of the adapter that is trained further, or as PEFT makes them. Each rank makes
    one after the other whole, and keeps its own part.
    """
    generator = torch.Generator().manual_seed(config.seed)
    for name, parameter in network.named_parameters():
        if "lora_" not in name or "lora_magnitude_vector" in name:
            continue
        whole = torch.zeros(parameter.shape)
        if "lora_A" in name:
            nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
        elif "lora_embedding_B" in name:
            nn.init.normal_(whole, generator=generator)
        elif "lora_B" not in name and "lora_embedding_A" not in name:
            raise ModelError(f"{name}: expected an adapter of LoRA, found another")
        local(parameter).copy_(local_shard(whole, parameter))
    if config.lora_init_from:
        _read(network, Path(config.lora_init_from))
        return
    layers: list[Any] = list(network.modules())
    for module in layers:
        for name, dora in getattr(module, "lora_magnitude_vector", {}).items():
            # With an adapter that adds nothing yet: the length of each row of the weight.
            weight = nf4.plain(module.get_base_layer())
            length = dora.get_weight_norm(weight, 0, 0, adapter_name=name)
            local(dora.weight).copy_(local_shard(length.float(), dora.weight))


def _read(network: nn.Module, folder: Path) -> None:
    """Read the values of an adapter that is trained further."""
    wanted = {export.peft_name(n): p for n, p in network.named_parameters() if p.requires_grad}
    try:
        with safe_open(folder / export.WEIGHTS, framework="pt") as file:
            names = set(file.keys())
            if other := sorted(names ^ wanted.keys()):
                where = "the model" if other[0] in names else export.WEIGHTS
                raise no_adapter(folder, f"{other[0]} not in {where} (and {len(other) - 1} others)")
            for name, parameter in wanted.items():
                shape = file.get_slice(name).get_shape()
                if shape != list(parameter.shape):
                    expected = f"{name} of {shape}, where the model has {list(parameter.shape)}"
                    raise no_adapter(folder, expected)
                local(parameter).copy_(local_shard(file.get_tensor(name).float(), parameter))
    except (OSError, SafetensorError) as error:
        raise no_adapter(folder, f"{type(error).__name__}: {error}") from None
