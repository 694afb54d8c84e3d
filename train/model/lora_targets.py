"""A model without its weights: does it have the modules and the attention that are asked for."""

from __future__ import annotations

import difflib
import importlib.util
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.errors import ConfigError

if TYPE_CHECKING:
    from train.config.config import Config

EVERY = ("all-linear",)
BUILT_IN = ("sdpa", "eager")


def is_usual(config: Config, folder: Path) -> bool:
    """Return whether the model is sure to have what is asked for: torch need not be loaded then."""
    named = config.method == "lora" and config.lora_target_modules != EVERY
    if named or config.attn_implementation not in BUILT_IN:
        return False
    return config.attn_implementation != "sdpa" or _may_have_sdpa(folder)


def _may_have_sdpa(folder: Path) -> bool:
    """Return whether the source of the model's class says so, or there is none to be read."""
    package = importlib.util.find_spec("transformers")
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
        where = package.submodule_search_locations if package else None
        source = Path((where or [""])[0], "models", kind, f"modeling_{kind}.py")
        return "_supports_sdpa = True" in source.read_text(encoding="utf-8")
    except (OSError, ValueError, TypeError, KeyError):
        return True


def look(config: Config, folder: Path) -> str:
    """Make the model's modules without any weights, and say what was found.

    Args:
        config: What is asked for.
        folder: The base model's.

    Raises:
        ConfigError: a module or a package is not there.
    """
    # ruff: noqa: PLC0415  (seconds, for those alone who ask for the unusual)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    how = {"trust_remote_code": config.trust_remote_code}
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shape = AutoConfig.from_pretrained(folder, local_files_only=True, **how)
            network = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                shape, attn_implementation=config.attn_implementation, **how
            )
        except (ImportError, OSError, ValueError) as error:
            found = " ".join(str(error).split())
            built_in = config.attn_implementation in BUILT_IN
            raise ConfigError(
                (f"attn_implementation: expected {config.attn_implementation}, found: {found}",),
                hint="attn_implementation: eager, which every model has"
                if built_in
                else "install it on every node, or set attn_implementation: sdpa",
            ) from error
    if config.method != "lora" or config.lora_target_modules == EVERY:
        return f"attention by {config.attn_implementation}"
    names = [name for name, module in network.named_modules() if _is_linear(module)]
    counts = count_targets(config, names)
    refuse_shared_head(config, network)
    return f"adapters on {sum(counts.values())} modules of {len(names)}"


def count_targets(config: Config, names: list[str]) -> dict[str, int]:
    """Return how many of a model's modules each name in lora_target_modules means.

    PEFT is content if one of them is found, and says nothing of the others.

    Raises:
        ConfigError: naming each that means none, and what is nearest.
    """
    counts = {
        target: sum(_means(target, name) for name in names) for target in config.lora_target_modules
    }
    lacking = [target for target, count in counts.items() if not count]
    if lacking:
        raise ConfigError(tuple(_lacks(target, names) for target in lacking))
    return counts


def refuse_shared_head(config: Config, network: Any) -> None:  # noqa: ANN401  (a transformers model)
    """Refuse an adapter on an output head whose weights are those of the input embeddings too.

    PEFT puts a layer of its own in the head's place, and the two could not be tied again.

    Raises:
        ConfigError: naming what means the head.
    """
    head, table = network.get_output_embeddings(), network.get_input_embeddings()
    if head.weight is not table.weight:
        return
    (name,) = (name for name, module in network.named_modules() if module is head)
    if meant := [target for target in config.lora_target_modules if _means(target, name)]:
        said = "expected no adapter on a head that shares the input embeddings' weights"
        raise ConfigError((f"lora_target_modules: {said}, found {meant[0]}",), hint="leave it out")


def _means(target: str, name: str) -> bool:
    """Return whether PEFT takes a module of this name for a target."""
    return name == target or name.endswith(f".{target}")


def _is_linear(module: object) -> bool:
    """Return whether an adapter can be put beside it: GPT-2 calls its own linear layer Conv1D."""
    return type(module).__name__ in {"Linear", "Conv1D", "Embedding"}


def _lacks(target: str, names: list[str]) -> str:
    """Say that no module is called so, and what is."""
    known = sorted({name.rpartition(".")[2] for name in names})
    close = difflib.get_close_matches(target.rpartition(".")[2], known, n=2, cutoff=0.6)
    nearest = f"nearest: {', '.join(close)}" if close else f"there are {', '.join(known)}"
    return f"lora_target_modules: expected modules of the model, found no {target}; {nearest}"
