"""What gets an adapter: names of modules and of single weights, as PEFT takes them.

transformers 5 keeps the routed experts of a layer in one tensor. PEFT 0.21 helps old adapters over
that: in model types that it knows, any target that ends in `gate_proj`, `up_proj`, `down_proj` or
`gate` counts as routed experts and router, whatever module is meant (`_convert_peft_config_moe`
in peft/utils/transformers_weight_conversion.py). Shared experts and dense layers bear those names
too. They are reached as single weights, `gate_proj.weight`, which PEFT leaves as they are named.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from train.config.config import Config
from train.errors import ConfigError
from train.model import vision
from train.model.kinds import Kinds

EVERY = ("all-linear",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What PEFT gets."""

    modules: tuple[str, ...] | str
    """Ends of modules' names, or what PEFT calls all-linear."""
    parameters: tuple[str, ...]
    """Ends of single weights' names; PEFT folds the adapter's product into these."""
    excluded: str | None = None
    """What names of modules match that get none."""


def find(config: Config, network: Any) -> Targets:
    """Return what gets an adapter in this model, which has none and may be without weights.

    Raises:
        ConfigError: something asked for is not there, or PEFT cannot put an adapter on it.
    """
    config = _named(config, network)
    asked = config.lora_target_modules
    if asked == EVERY:
        asked = _every_linear(config, network)
    else:
        count_targets(config, network)
        refuse_shared_head(config, network)
    _count_parameters(config, network)
    renamed = _renamed(network)
    parameters = [f"{name}.weight" for name in asked if _last(name) in renamed]
    parameters = list(dict.fromkeys((*parameters, *config.lora_target_parameters)))
    if parameters and config.lora_dropout:
        message = (
            f"lora_dropout: expected 0 with adapters on single weights ({', '.join(parameters)}), "
            f"which PEFT folds into the weights, found {config.lora_dropout}"
        )
        hint = f"lora_target_modules: [{', '.join(_attention(network))}] can have it"
        raise ConfigError(message, hint=hint)
    modules = tuple(name for name in asked if _last(name) not in renamed)
    frozen = vision.frozen(config, network)
    return Targets(
        modules=EVERY[0] if modules == EVERY else modules,
        parameters=tuple(parameters),
        excluded=frozen.pattern if frozen else None,
    )


def _named(config: Config, network: Any) -> Config:
    """Return a configuration whose patterns of whole names, as axolotl writes them, are names."""
    names = [name for name, module in network.named_modules() if _is_linear(module)]
    found: list[str] = []
    for target in config.lora_target_modules:
        if re.fullmatch(r"[\w.-]+", target):
            found.append(target)
            continue
        try:
            meant = [name for name in names if re.fullmatch(target, name)]
        except re.error as error:
            said = f"expected names or a pattern of names, found {target}: {error}"
            raise ConfigError(f"lora_target_modules: {said}") from None
        found += meant or [target]
    return replace(config, lora_target_modules=tuple(found))


def _renamed(network: Any) -> frozenset[str]:
    """Return the last parts of names that PEFT takes for routed experts or the router."""
    try:
        from peft.utils import transformers_weight_conversion as peft
    except ImportError:  # a PEFT that does not rename; `verify` would notice if one does
        return frozenset()
    kinds = getattr(peft, "_MODEL_TO_CONVERSION_PATTERN", {})
    names = getattr(peft, "_MOE_TARGET_MODULE_MAPPING", {})
    return frozenset(names.get(kinds.get(getattr(network.config, "model_type", "")), ()))


def _is_refused(network: Any, name: str) -> bool:
    """Return whether PEFT puts no adapter on modules of this name: `out_proj` next to Mamba's."""
    from peft import LoraConfig
    from peft.tuners import tuners_utils

    check = getattr(tuners_utils, "_check_lora_target_modules_mamba", None)
    try:
        if check:
            check(LoraConfig(), network, name)
    except ValueError:
        return True
    return False


def _every_linear(config: Config, network: Any) -> tuple[str, ...]:
    """Return what all-linear means: in a dense model what it means to PEFT.

    In a mixture of experts it is every linear layer but the output head, the routed experts and
    the router; in a state space model all but those that PEFT refuses.
    """
    kinds = Kinds(network)
    of = {name: kinds.of(name) for name, _ in network.named_modules()}
    refused = {_last(name) for name in of if _is_refused(network, _last(name))}
    if "routed experts" not in of.values() and not _renamed(network) and not refused:
        return EVERY
    head = network.get_output_embeddings()
    linear = {name: m for name, m in network.named_modules() if _is_linear(m) and m is not head}
    left_out = {"routed experts", "router", "embeddings and head"}
    left_out |= {vision.TOWER} if config.freeze_vision_tower else set()
    left_out |= {vision.PROJECTOR} if config.freeze_multi_modal_projector else set()
    wanted = {name for name in linear if of[name] not in left_out and _last(name) not in refused}
    others = {_last(name) for name in of if name not in wanted}
    # The end of a name, as PEFT matches it, if it means nothing else.
    return tuple(sorted({name if _last(name) in others else _last(name) for name in wanted}))


def _attention(network: Any) -> list[str]:
    kinds = Kinds(network)
    linear = (name for name, module in network.named_modules() if _is_linear(module))
    return sorted({_last(name) for name in linear if kinds.of(name) == "attention"})


def verify(config: Config, targets: Targets, network: Any) -> None:
    """Refuse a model whose adapters are not where they were asked for: PEFT rewrites some names."""
    if targets.modules == EVERY[0]:
        return
    lacking = {*targets.modules, *targets.parameters}
    for name, module in network.get_base_model().named_modules():
        if not hasattr(module, "lora_A"):
            continue
        place = name.replace(".base_layer", "")
        place += f".{module.parameter_name}" if hasattr(module, "parameter_name") else ""
        meant = {t for t in (*targets.modules, *targets.parameters) if _means(t, place)}
        if not meant:
            names = ", ".join((*config.lora_target_modules, *config.lora_target_parameters))
            message = f"lora_target_modules: expected adapters on {names}, found one on {place}"
            raise ConfigError(message, hint="this PEFT renames them: name other modules")
        lacking -= meant
    if lacking:
        found = "found none: this PEFT renames it"
        message = f"lora_target_modules: expected adapters on {min(lacking)}, {found}"
        raise ConfigError(message, hint="name other modules")


def count_targets(config: Config, network: Any) -> dict[str, int]:
    """Return how many of a model's modules each name in lora_target_modules means.

    PEFT is content if one of them is found, and ignores the others. Here each name that means no
    module is refused.
    """
    asked = config.lora_target_modules
    names = [
        name
        for name, module in network.named_modules()
        # A router is no layer, but has weights like one.
        if _is_linear(module) or (_last(name) == "gate" and hasattr(module, "weight"))
    ]
    counts = {target: sum(_means(target, name) for name in names) for target in asked}
    if lacking := [target for target, count in counts.items() if not count]:
        known = sorted({_last(name) for name in names})
        raise ConfigError(
            *tuple(_lacks("lora_target_modules", "modules", target, known) for target in lacking),
            hint=_experts_hint(network),
        )
    return counts


def _experts_hint(network: Any) -> str | None:
    """Return how to name routed experts, if they are no modules of their own."""
    kinds = Kinds(network)
    names = {
        ".".join(name.split(".")[-2:])
        for name, weight in network.named_parameters()
        if weight.ndim == 3 and kinds.of(name.rpartition(".")[0]) == "routed experts"  # noqa: PLR2004
    }
    listed = ", ".join(sorted(names))
    return f"routed experts are lora_target_parameters: [{listed}]" if names else None


def _count_parameters(config: Config, network: Any) -> None:
    """Refuse names in lora_target_parameters that mean no weight of a shape that PEFT takes."""
    found = {name: weight for name, weight in network.named_parameters() if weight.ndim in {2, 3}}
    known = sorted({".".join(name.split(".")[-2:]) for name in found})
    problems = [
        _lacks("lora_target_parameters", "weights", target, known)
        for target in config.lora_target_parameters
        if not any(_means(target, name) for name in found)
    ]
    if problems:
        raise ConfigError(*problems)


def refuse_shared_head(config: Config, network: Any) -> None:
    """Refuse an adapter on an output head whose weights are those of the input embeddings too.

    PEFT puts a layer of its own in the head's place, and the two could not be tied again.
    """
    head, table = network.get_output_embeddings(), network.get_input_embeddings()
    if head.weight is not table.weight:
        return
    (name,) = (name for name, module in network.named_modules() if module is head)
    if meant := [target for target in config.lora_target_modules if _means(target, name)]:
        said = "expected no adapter on a head that shares the input embeddings' weights"
        raise ConfigError(f"lora_target_modules: {said}, found {meant[0]}", hint="leave it out")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _means(target: str, name: str) -> bool:
    """Return whether PEFT takes a module of this name for a target."""
    return name == target or name.endswith(f".{target}")


def _is_linear(module: object) -> bool:
    """Return whether an adapter can be added to it: GPT-2 calls its own linear layer Conv1D."""
    return type(module).__name__ in {"Linear", "Conv1D", "Embedding"}


def _lacks(key: str, what: str, target: str, known: list[str]) -> str:
    """Say that nothing is called so, and what is."""
    close = difflib.get_close_matches(target, known, n=2, cutoff=0.6)
    if not close:
        close = difflib.get_close_matches(_last(target), known, n=2, cutoff=0.6)
    nearest = f"nearest: {', '.join(close)}" if close else f"there are {', '.join(known)}"
    return f"{key}: expected {what} of the model, found no {target}; {nearest}"
