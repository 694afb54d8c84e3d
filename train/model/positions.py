"""How many positions a model was made for: beyond them, it meets distances that are new to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STRETCHED = {"dynamic", "linear", "yarn"}
"""Kinds of RoPE scaling whose factor may not be in max_position_embeddings yet, as in Qwen 2.5's;
that of `llama3` and `longrope` always is."""


def count(about: Mapping[str, Any]) -> int:
    """Return how many positions a model's config.json tells of; 0 if it does not."""
    about = about.get("text_config") or about
    known = int(about.get("max_position_embeddings") or about.get("n_positions") or 0)
    rope = about.get("rope_parameters") or about.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in STRETCHED:
        original = rope.get("original_max_position_embeddings") or known
        return max(known, int(original * (rope.get("factor") or 1)))
    return known


def remarks(network: Any, longest: int) -> Iterator[str]:
    """Say if the longest sample has more tokens than the model has positions."""
    known = count(network.config.to_dict())
    if 0 < known < longest:
        yield (
            f"seq_len: the longest sample has {longest} tokens, and the model was made for {known} "
            "positions"
        )
