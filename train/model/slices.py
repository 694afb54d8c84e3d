"""A network filled from safetensors, a layer at a time: each rank reads its own slices only.

transformers (5.23, core_model_loading) reads a tensor through its safetensors slice, cut as the
parameter it goes to is (a DTensor), also where it fuses many tensors into one, as experts. It knows
a model without adapters only. So a model without adapters and without memory is made, its
parameters cut as the network's are, filled a layer at a time, and each layer is handed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from train.config.config import Config
from train.distributed import host_memory
from train.distributed.process_group import Ranks
from train.errors import ConfigError
from train.model import memory, nf4, placement, quantized, vision
from train.model.load import UNUSABLE, base_of, make, unusable
from train.model.parallelize import local, local_shard, sharded_as

COPY = ".modules_to_save.default."
"""What PEFT calls a module that is trained in place of one of the base."""
ADDED = re.compile(rf"lora_|{re.escape(COPY)}")
"""Parameters that are not the base's."""


class CannotSlice(Exception):  # noqa: N818  (named for what is so)
    """The files cannot be read in slices; the message says why, and they must be read whole."""


def files(folder: Path) -> list[Path]:
    """Return the model's safetensors; CannotSlice if some are missing."""
    found = memory.weight_files(folder)
    if missing := [path.name for path in found if not path.is_file()]:
        raise CannotSlice(f"{missing[0]} is not in {folder}")
    return found


@torch.no_grad()
def load_into(network: nn.Module, config: Config, folder: Path) -> None:
    """Fill this rank's shards of the base's weights, and its buffers; adapters stay as they are.

    Raises:
        CannotSlice: transformers does not know how, or a weight or buffer is in no file.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig
    except ImportError as error:  # before 5.x
        raise CannotSlice(f"this transformers reads no slices: {error}") from error
    base = base_of(network)
    sources = files(folder)
    stored = quantized.scheme(folder / "config.json", config.name_or_path)
    with torch.device("meta"):
        plain: Any = vision.auto_class(folder).from_config(
            base.config,
            dtype=next(p.dtype for n, p in base.named_parameters() if not ADDED.search(n)),
            attn_implementation=config.attn_implementation,
            trust_remote_code=config.trust_remote_code,
        )
    every = dict(base.named_parameters(remove_duplicate=False))
    parameters = {_plain(n): p for n, p in every.items() if not ADDED.search(n)}
    copies = {n.replace(COPY, "."): p for n, p in every.items() if COPY in n}
    shrunk = {_plain(name): layer for name, layer in nf4.layers(base).items()}
    buffers = {_plain(name): buffer for name, buffer in base.named_buffers()}
    # With fewer rows than ranks some have none; transformers fails to stack no experts.
    empty = {name for name, p in parameters.items() if _is_empty(p)}
    left = set(plain.state_dict())
    mapping: Any = get_model_conversion_mapping(plain)
    with ExitStack() as stack:
        # Mapped into memory: with `pread` safetensors reads a tensor whole to cut a slice from it.
        opened = [stack.enter_context(safe_open(path, framework="pt")) for path in sources]
        holders = {key: file for file in opened for key in file.keys()}  # noqa: SIM118  (no dict)
        where = quantized.tensors(holders, stored)
        reordered = _reordered(plain, where)
        placeholders = {
            name: like
            if name in reordered or name in shrunk
            else _placeholder(parameters[name], like)
            for name, like in plain.named_parameters(remove_duplicate=False)
        }
        for name, parameter in placeholders.items():
            _set_parameter(plain, name, parameter)
        for keys in _layers(where):
            info, _ = convert_and_load_state_dict_in_model(
                model=plain,
                state_dict={key: where[key] for key in keys},
                load_config=LoadStateDictConfig(weight_mapping=mapping),
            )
            _refuse_misfits(plain, info, empty)
            for name in left - info.missing_keys:
                found = plain.get_parameter_or_buffer(name)
                target = parameters.get(name, buffers.get(name))
                assert target is not None
                if name in shrunk:
                    weight = found.to(local(target).device)
                    small = nf4.packed(shrunk[name], weight, target.dtype)
                    local(target).copy_(local_shard(small, target))
                    _set_parameter(plain, name, placeholders[name])
                    continue
                whole = not isinstance(found, DTensor)
                part = local_shard(found, target) if whole else local(found)
                local(target).copy_(part)
                if name in copies:  # trained in its place
                    local(copies[name]).copy_(part)
                if name in placeholders:
                    _set_parameter(plain, name, placeholders[name])
            left &= info.missing_keys
    tied = set(getattr(plain, "all_tied_weights_keys", None) or ())
    if lacking := sorted(left - tied - empty):
        raise CannotSlice(f"{lacking[0]} is in no file (and {len(lacking) - 1} others)")
    _compute_buffers(plain, buffers)


def _refuse_misfits(plain: Any, info: Any, empty: set[str]) -> None:
    """Refuse tensors of the files that do not fit a parameter, or have none."""
    if wrong := [*info.mismatched_keys, *(info.conversion_errors.keys() - empty)]:
        raise CannotSlice(f"{wrong[0]} does not fit (and {len(wrong) - 1} others)")
    if extra := placement.not_dropped(plain, info.unexpected_keys):
        raise CannotSlice(f"{extra[0]} has no place (and {len(extra) - 1} others)")


def _reordered(plain: Any, keys: Any) -> set[str]:
    """Return the parameters that transformers joins or splits along the rows that FSDP cuts.

    Their rows do not come from the same rows of the files, so each rank reads these whole: with
    q, k and v in one parameter a slice of each has the right shape and the wrong rows. Stacked
    experts, joined along another dimension, are the same either way.
    """
    from transformers.core_model_loading import Concatenate, MergeModulelist

    def keeps_rows(operation: object) -> bool:
        if isinstance(operation, MergeModulelist):
            return bool(operation.dim == 0)
        return isinstance(operation, Concatenate) and bool(operation.dim > 0)

    converters, place = placement.conversions(plain)
    mixing = [one for one in converters if not all(map(keeps_rows, one.operations))]
    names = plain.state_dict()
    found: set[str] = set()
    for key in keys:
        name, pattern = place(key)
        for converter in mixing:
            if pattern in converter.source_patterns and name in names:
                first, *_ = converter.target_patterns
                found |= {name.replace(first, target) for target in converter.target_patterns}
    if unknown := sorted(found - names.keys()):
        raise CannotSlice(f"transformers converts to {unknown[0]}, which is not in the model")
    return found


def _compute_buffers(plain: Any, buffers: dict[str, Tensor]) -> None:
    """Compute the buffers that are in no file (rotary frequencies), as transformers does."""
    kept = set(plain.state_dict())
    # A model inside another one, such as that of text with images, has its own way to do it.
    owners = [n for n, m in plain.named_modules() if isinstance(m, PreTrainedModel)]
    for path, module in plain.named_modules():
        names = {n: f"{path}.{n}" if path else n for n, b in module.named_buffers(recurse=False)}
        computed = {short: name for short, name in names.items() if name not in kept}
        if not computed:
            continue
        within = (name for name in owners if f"{path}.".startswith(f"{name}.") or not name)
        owner = plain.get_submodule(max(within, key=len))
        once, again = (_initialized(owner, module, computed, start) for start in (0, 1))
        for short, name in computed.items():
            if not torch.equal(once[short], again[short]):
                raise CannotSlice(f"{name} is in no file, and transformers does not compute it")
            buffers[name].copy_(once[short])


def _initialized(
    owner: Any, module: nn.Module, names: Iterable[str], start: int
) -> dict[str, Tensor]:
    """Return a module's buffers as transformers makes them of ones that are full of a number."""
    for name in names:
        old = module.get_buffer(name)
        new = torch.full(old.shape, start, dtype=old.dtype)
        module.register_buffer(name, new, persistent=False)
    owner._init_weights(module)  # noqa: SLF001  (what from_pretrained does with them)
    return {name: module.get_buffer(name) for name in names}


def _plain(name: str) -> str:
    """Return a name in the base as it is without adapters."""
    return name.replace("base_layer.", "").replace("original_module.", "")


def _is_empty(parameter: Tensor) -> bool:
    return isinstance(parameter, DTensor) and not local(parameter).numel()


def _placeholder(parameter: Tensor, like: Tensor) -> nn.Parameter:
    """Return a parameter without memory that is sharded as another one is."""
    part = torch.empty(local(parameter).shape, dtype=like.dtype, device="meta")
    return nn.Parameter(sharded_as(parameter, part), requires_grad=False)


def _set_parameter(network: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, short = name.rpartition(".")
    setattr(network.get_submodule(path), short, parameter)


def _layers(keys: Any) -> list[list[str]]:
    """Return the names by layer: what is fused into one parameter stands under one number."""
    found: dict[str, list[str]] = {}
    for key in keys:
        match = re.search(r"\.\d+\.", key)
        found.setdefault(match[0] if match else "", []).append(key)
    return list(found.values())


def load_slices(config: Config, ranks: Ranks, folder: Path, network: nn.Module) -> str:
    """Read this rank's slices; return why some rank cannot, the same on every rank."""
    problem = ""
    try:
        load_into(network, config, folder)
    except Exception as error:  # noqa: BLE001  (whatever it is, all ranks read the base whole then)
        problem = f"{type(error).__name__}: {error}".removeprefix("CannotSlice: ")
    return next(filter(None, ranks.gather(problem, ranks.storage)), "")


def load_whole(config: Config, ranks: Ranks, folder: Path, dtype: torch.dtype) -> nn.Module | None:
    """Return the model with its weights on rank 0; the others wait, and hear what went wrong.

    A large model takes longer to read than a collective of the training may take.
    """
    source, problem = None, None
    if ranks.is_first:
        try:
            _refuse_too_large(config, ranks, folder)
            source = make(config, folder, dtype)
        except ConfigError as error:
            problem = error
        except UNUSABLE as error:
            problem = unusable(config, folder, error)
            problem.__cause__ = error
    (said, *_) = ranks.gather((problem.problems, problem.hint) if problem else None, ranks.storage)
    if said:
        raise problem or ConfigError(*said[0], hint=said[1])
    return source


def _refuse_too_large(config: Config, ranks: Ranks, folder: Path) -> None:
    """Refuse to read a model whole into less memory than it takes."""
    size = memory.base_bytes(config, gpu=ranks.device.type == "cuda")
    needed, left = size * memory.shape(folder).parameters, host_memory.available()
    if needed > left:
        problem = (
            f"host memory on {ranks.hosts[0]}: expected {memory.size_in_words(needed)} for the "
            f"whole model on rank 0, found {memory.size_in_words(left)} available"
        )
        raise ConfigError(problem, hint=memory.MORE_ROOM)
