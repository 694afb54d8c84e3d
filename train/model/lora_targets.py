"""What gets an adapter, and of which shape, as PEFT takes them.

transformers 5 keeps the routed experts of a layer in one tensor. PEFT 0.21 helps old adapters over
that: in model types that it knows, any target that ends in `gate_proj`, `up_proj`, `down_proj` or
`gate` counts as routed experts and router, whatever module is meant (`_convert_peft_config_moe`
in peft/utils/transformers_weight_conversion.py). Shared experts and dense layers bear those names
too. They are reached as single weights, `gate_proj.weight`, which PEFT leaves as they are named.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.errors import ConfigError
from train.model import export, vision
from train.model.kinds import Kinds
from train.model.peft import LoraConfig

EVERY = ("all-linear",)
KEYS = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "rank_pattern": "lora_rank_pattern",
    "alpha_pattern": "lora_alpha_pattern",
    "use_rslora": "lora_use_rslora",
    "use_dora": "lora_use_dora",
}
"""PEFT's keys → ours."""
OF_THE_FILE = frozenset({
    "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights",
    "megatron_core", "peft_type", "peft_version", "revision", "runtime_config", "task_type",
})  # fmt: skip
"""PEFT's keys that do not change how an adapter is trained further."""


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
    _refuse_unknown(config, network)
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
        from peft.utils import transformers_weight_conversion as renaming
    except ImportError:  # a PEFT that does not rename; `verify` would notice if one does
        return frozenset()
    kinds = getattr(renaming, "_MODEL_TO_CONVERSION_PATTERN", {})
    names = getattr(renaming, "_MOE_TARGET_MODULE_MAPPING", {})
    return frozenset(names.get(kinds.get(getattr(network.config, "model_type", "")), ()))


def _is_refused(network: Any, name: str) -> bool:
    """Return whether PEFT puts no adapter on modules of this name: `out_proj` next to Mamba's."""
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


def _refuse_unknown(config: Config, network: Any) -> None:
    """Refuse names of modules that are none of the model's: PEFT would ignore them."""
    names = [name for name, module in network.named_modules() if hasattr(module, "weight")]
    known = sorted({_last(name) for name in names})
    found = {
        "lora_modules_to_save": config.lora_modules_to_save,
        "lora_rank_pattern": config.lora_rank_pattern or (),
        "lora_alpha_pattern": config.lora_alpha_pattern or (),
    }
    if problems := [
        _lacks(key, "modules", target, known)
        for key, targets in found.items()
        for target in targets
        # The patterns are regular expressions of PEFT.
        if not any(re.match(rf"(.*\.)?({target})$", name) for name in names)
    ]:
        raise ConfigError(*problems)


def refuse_shared_head(config: Config, network: Any) -> None:
    """Refuse an adapter on an output head whose weights are those of the input embeddings too.

    PEFT puts a layer of its own in the head's place, and the two could not be tied again.
    """
    head, table = network.get_output_embeddings(), network.get_input_embeddings()
    if head.weight is not table.weight:
        return
    said = "expected no adapter on a head that shares the input embeddings' weights"
    whole = "expected no part of a head and embeddings that share their weights"
    for key, wanted, ends in (
        ("lora_target_modules", said, (head,)),
        ("lora_modules_to_save", whole, (head, table)),
    ):
        names = [name for name, module in network.named_modules() if module in ends]
        for target in getattr(config, key):
            if any(_means(target, name) for name in names):
                raise ConfigError(f"{key}: {wanted}, found {target}", hint="leave it out")


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


def lora(config: Config, targets: Targets) -> LoraConfig:
    """Return the adapters' shape as PEFT takes it."""
    values = {key: _as_peft(getattr(config, ours)) for key, ours in KEYS.items()}
    modules = targets.modules
    values["target_modules"] = modules if isinstance(modules, str) else list(modules)
    values["target_parameters"] = list(targets.parameters) or None
    values["exclude_modules"] = targets.excluded
    return LoraConfig(**values, base_model_name_or_path=config.name_or_path, task_type="CAUSAL_LM")


def _as_peft(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value) or None
    return {} if value is None else value


def continued(config: Config) -> Config:
    """Return the configuration with the shape of the adapter that it trains further, if it does.

    Raises:
        ConfigError: There is no such adapter, or it is of another kind.
    """
    if not config.lora_init_from or config.method != "lora":
        return config
    folder = Path(config.lora_init_from)
    try:
        found = json.loads((folder / export.SHAPE).read_text(encoding="utf-8"))
        usual = LoraConfig().to_dict()
        kind = found["peft_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise no_adapter(folder, f"{type(error).__name__}: {error}") from None
    if kind != "LORA":
        raise no_adapter(folder, f"one of {kind}")
    if found.get("init_lora_weights", True) not in (True, "gaussian"):
        how = found["init_lora_weights"]
        raise no_adapter(folder, f"{how}, whose adapters belong to a base of their own")
    for key, value in found.items():
        if key not in KEYS | dict.fromkeys(OF_THE_FILE) and (value or None) != (
            usual.get(key) or None
        ):
            raise no_adapter(folder, f"{key}: {value}, which is not trained here")
    shape = {ours: _as_ours(ours, found.get(key, usual[key])) for key, ours in KEYS.items()}
    default = {item.name: item.default for item in fields(Config)}
    problems = [
        f"{name}: expected {_said(value)} as in {folder}, found {_said(given)}"
        for name, value in shape.items()
        if (given := getattr(config, name)) not in (default[name], value)
        and (name != "lora_target_modules" or sorted(given) != sorted(value))
    ]
    if problems:
        raise ConfigError(*problems, hint="leave them out: the adapter's own count")
    return replace(config, **shape)


def _as_ours(name: str, value: Any) -> Any:
    if name in {"lora_target_modules", "lora_target_parameters", "lora_modules_to_save"}:
        if isinstance(value, str):
            value = [value]
        return tuple(sorted(value or ()))
    return value or (None if name.endswith("_pattern") else value)


def _said(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def no_adapter(folder: Path, found: str) -> ConfigError:
    """Return the refusal of an adapter that cannot be trained further."""
    message = (
        f"lora_init_from: expected LoRA's adapter as PEFT writes it in {folder}, found {found}"
    )
    hint = "output_dir/adapter of a training; without the key a new adapter is made"
    return ConfigError(message, hint=hint)
