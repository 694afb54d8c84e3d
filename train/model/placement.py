"""Whether each tensor of a base's files has a place in the model that transformers makes of it.

transformers drops a tensor that it has no place for, with a warning among many: a scale, a bias or
a norm that is missing makes another model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from train import versions
from train.errors import ConfigError

ALWAYS_DROPPED = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")
"""Buffers of old files, which transformers computes for all models."""


def conversions(network: Any) -> tuple[list[Any], Callable[[str], tuple[str, Any]]]:
    """Return transformers' converters of a base's tensors, and what finds a tensor's place.

    That returns the name in the model, and the pattern of the converter that makes it.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping: Any = get_model_conversion_mapping(network)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    places, prefix = network.state_dict(), network.base_model_prefix

    def place(name: str) -> tuple[str, Any]:
        found: tuple[str, Any] = rename_source_key(name, renamings, converters, prefix, places)
        return found if found[0] in places else rename_source_key(name, [], [], prefix, places)

    return converters, place


def unplaced(network: Any, names: Iterable[str]) -> list[str]:
    """Return the names in a base's files that the model has no place for, before any is read.

    The model is without adapters, and may be on the meta device.
    """
    try:
        _, place = conversions(network)
    except ImportError:  # of another transformers than tested; what it drops is checked again
        return []
    places = network.state_dict()
    return not_dropped(network, (n for n in names if n not in places and place(n)[0] not in places))


def not_dropped(network: Any, names: Iterable[str]) -> list[str]:
    """Return those of the names that the model does not say it has no use for."""
    own = getattr(network, "_keys_to_ignore_on_load_unexpected", None) or ()
    dropped = re.compile("|".join(f"({pattern})" for pattern in (*own, *ALWAYS_DROPPED)))
    return sorted(name for name in names if not dropped.search(name))


def refusal(name: str, network: Any, names: list[str]) -> ConfigError:
    """Return the refusal of a base with tensors that the model has no place for."""
    message = (
        f"name_or_path: expected a place in {type(network).__name__} for each tensor of {name}, "
        f"found none for {names[0]} (and {len(names) - 1} others)"
    )
    newest = versions.TABLE["transformers"].tested
    return ConfigError(message, hint=versions.install(transformers=newest))
