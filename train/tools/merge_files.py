"""A base's files with an adapter in their weights: read, changed and written one file at a time."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.errors import ConfigError
from train.model import memory, quantized, vision
from train.model.quantized import Scheme

if TYPE_CHECKING:
    from torch import Tensor

QUANTIZATION = ("quantization_config", "compression_config")
"""Keys of config.json that no longer hold once the weights are plain."""


class NotByName(Exception):  # noqa: N818  (named for what is so)
    """A weight with an adapter is not in the files under its own name; the message has the name."""


def write(base: Path, adapter: Path, output: Path) -> None:
    """Write the model's files with the adapter in them; it needs the memory of one of them.

    Raises:
        NotByName: transformers puts the files' tensors together in another way.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    changes = dict(_changes(base, adapter))
    stored = quantized.scheme(base / "config.json", str(base))
    files = memory.weight_files(base)
    weight_map: dict[str, str] = {}
    with ExitStack() as stack, torch.no_grad():
        opened = {path: stack.enter_context(safe_open(path, framework="pt")) for path in files}
        holders = {key: file for file in opened.values() for key in file.keys()}  # noqa: SIM118
        where = quantized.tensors(holders, stored)
        if lacking := sorted(changes.keys() - where.keys()):
            raise NotByName(lacking[0])
        _refuse_full(output, sum(path.stat().st_size for path in files) * (2 if stored else 1))
        output.mkdir(parents=True)
        for path, file in opened.items():
            kept = {}
            for name in (key for key in file.keys() if key in where):  # noqa: SIM118
                found = file.get_tensor(name) if stored is None else where[name][...]
                if stored is not None and found.dtype == torch.float32:
                    found = found.bfloat16()
                kept[name] = changes[name](found) if name in changes else found
                weight_map[name] = path.name
            save_file(kept, output / path.name, metadata={"format": "pt"})
            del kept
    _write_about(base, output, weight_map, plain_from=stored)


def _write_about(
    base: Path, output: Path, weight_map: dict[str, str], *, plain_from: Scheme | None
) -> None:
    """Write what is no weight: the base's other files, and an index of these weights."""
    for path in base.iterdir():
        if path.is_file() and path.suffix not in {".safetensors", ".bin", ".gguf", ".pth"}:
            shutil.copyfile(path, output / path.name)
    if len({*weight_map.values()}) > 1:
        size = sum(path.stat().st_size for path in output.glob("*.safetensors"))
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (output / memory.INDEX).write_text(json.dumps(index, indent=2) + "\n")
    if plain_from:
        about = json.loads((base / "config.json").read_text(encoding="utf-8"))
        for part in (about, about.get("text_config") or {}):
            for key in QUANTIZATION:
                part.pop(key, None)
        (output / "config.json").write_text(json.dumps(about, indent=2) + "\n")


def _changes(base: Path, adapter: Path) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Yield the name in the files of each weight that changes, and what makes the new one of it.

    The model is made without its weights: only the adapter has some.
    """
    import torch
    from transformers import AutoConfig

    from train.model.peft import PeftModel, without_bitsandbytes

    with without_bitsandbytes():
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import ModulesToSaveWrapper

    shape = AutoConfig.from_pretrained(base, local_files_only=True)
    for key in QUANTIZATION:
        if hasattr(shape, key):
            delattr(shape, key)
    with torch.device("meta"):
        # (PEFT reads an adapter in the dtype of its base, and would round it)
        plain = vision.auto_class(base).from_config(shape, dtype=torch.float32)
    tied = set(getattr(plain, "all_tied_weights_keys", None) or ())
    # PEFT moves what it reads to where the base is: to weights on the CPU that take no memory.
    for name, parameter in list(plain.named_parameters()):
        path, _, own = name.rpartition(".")
        nothing = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
        setattr(plain.get_submodule(path), own, torch.nn.Parameter(nothing, requires_grad=False))
    with without_bitsandbytes():
        network = PeftModel.from_pretrained(plain, str(adapter), low_cpu_mem_usage=True)
    names = (n for n, p in network.named_parameters() if p.is_meta and ".default" in n)
    if lacking := next(names, None):
        raise ValueError(f"no {lacking} in {adapter}")
    ends = {id(plain.get_input_embeddings()), id(plain.get_output_embeddings())}
    for path, module in network.get_base_model().named_modules():
        name = path.replace(".base_layer", "")
        changed = isinstance(module, (ModulesToSaveWrapper, BaseTunerLayer))
        if changed and tied and id(module) in ends:  # one tensor for two layers
            raise NotByName(name)
        if isinstance(module, ModulesToSaveWrapper):
            for own, parameter in module.modules_to_save["default"].named_parameters():
                yield f"{name}.{own}", partial(_replaced, parameter)
        elif isinstance(module, BaseTunerLayer):
            yield f"{name}.{_own_name(module)}", partial(_merged, module)


def keep_float32(network: Any, base: Path) -> None:
    """Give weights that loading has rounded back as the files have them, such as a router's."""
    from safetensors import safe_open

    loaded = dict(network.named_parameters())
    for path in memory.weight_files(base):
        wide = [name for name, one in memory.header(path).items() if one["dtype"] == "F32"]
        with safe_open(path, framework="pt") as file:
            for name in loaded.keys() & wide:
                loaded[name].data = file.get_tensor(name)


def merged_whole(network: Any) -> Any:
    """Return a loaded base with its adapter in it, each weight in its own dtype."""
    from train.model.peft import without_bitsandbytes

    with without_bitsandbytes():
        from peft.tuners.tuners_utils import BaseTunerLayer

    for layer in network.modules():
        if isinstance(layer, BaseTunerLayer):
            base, name = layer.get_base_layer(), _own_name(layer)
            getattr(base, name).data = _merged(layer, getattr(base, name).data)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="All adapters are already merged")
        return network.merge_and_unload()


def _own_name(layer: Any) -> str:
    return str(getattr(layer, "parameter_name", "weight"))


def _replaced(trained: Tensor, weight: Tensor) -> Tensor:
    return trained.to(weight.dtype)


def _merged(layer: Any, weight: Tensor) -> Tensor:
    """Return a weight with its adapter in it, in its own dtype; PEFT adds them, in float32."""
    from torch import nn

    base, name = layer.get_base_layer(), _own_name(layer)
    empty = getattr(base, name)
    if empty.shape != weight.shape:
        shapes = f"{list(empty.shape)} in config.json, {list(weight.shape)} in the files"
        raise ValueError(f"a weight of {shapes}")
    setattr(base, name, nn.Parameter(weight.float(), requires_grad=False))
    layer.merge(safe_merge=True)
    found: Tensor = getattr(base, name).data.to(weight.dtype)
    setattr(base, name, empty)
    return found


def _refuse_full(output: Path, size: int) -> None:
    free = shutil.disk_usage(output.parent).free
    if free < size:
        wanted = f"{memory.size_in_words(size)} free for {output.name}"
        raise ConfigError(f"{output.parent}: expected {wanted}, found {memory.size_in_words(free)}")
