"""The parts of a model that see: which they are, whether they are trained, and its class."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.data.images import has_processor
from train.errors import ConfigError

TOWER, PROJECTOR = "vision tower", "projector"
MERGERS = ("merger", "deepstack_merger_list")
"""How a part of Qwen's towers is called that hands features to the language model."""


def auto_class(folder: Path) -> Any:
    """Return the class of transformers that makes a folder's model: for images if it has both."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if has_processor(folder):
        shape = AutoConfig.from_pretrained(folder, local_files_only=True)
        if type(shape) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            return AutoModelForImageTextToText
    return AutoModelForCausalLM


def is_in(module: str, part: str) -> bool:
    """Return whether a module's name is that of a part, or of something in it."""
    return module == part or module.startswith(f"{part}.")


def parts(network: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the modules that see, by kind; {} for a model of text.

    What is neither the tower nor the language model nor its head hands features from one to the
    other.
    """
    base = network.get_base_model() if hasattr(network, "get_base_model") else network
    if getattr(base.config, "vision_config", None) is None:
        return {}
    names = {id(module): name for name, module in network.named_modules()}
    tower, text = base.get_encoder("image"), base.get_decoder()
    if tower is base or text is base or id(tower) not in names:
        return {}
    within = names[id(tower)]
    mergers = [f"{within}.{name}" for name, _ in tower.named_children() if name in MERGERS]
    above = network.get_submodule(within.rpartition(".")[0])
    others = [
        names[id(child)]
        for _, child in above.named_children()
        if child not in (tower, text, base.get_output_embeddings())
    ]
    return {PROJECTOR: (*mergers, *others), TOWER: (within,)}


def frozen(config: Config, network: Any) -> re.Pattern[str] | None:
    """Return what the names of frozen modules, and of their weights, match as a whole.

    None if nothing is: of a model of text.
    """
    keeps = {TOWER: config.freeze_vision_tower, PROJECTOR: config.freeze_multi_modal_projector}
    found = parts(network).items()
    kept = [name for kind, names in found if keeps[kind] for name in names]
    trained = [name for kind, names in found if not keeps[kind] for name in names]
    # Qwen's tower has its projector within it.
    but = [name for name in trained if any(is_in(name, part) for part in kept)]
    if not kept:
        return None
    those, others = ("|".join(map(re.escape, names)) for names in (kept, but))
    return re.compile((rf"(?!(?:{others})(?:\..*)?$)" if but else "") + rf"(?:{those})(?:\..*)?")


def freeze(config: Config, network: Any) -> None:
    """Freeze what the configuration does not train, in a model without adapters."""
    if pattern := frozen(config, network):
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(requires_grad=not pattern.fullmatch(name))


def packing_refusal() -> ConfigError:
    """Return the refusal of packed rows of images."""
    message = (
        "batching: expected balanced or plain for a model that sees images, whose positions do "
        "not tell packed documents apart, found packed"
    )
    return ConfigError(message, hint="batching: balanced")
