"""How much arithmetic a token takes and a GPU can do: what MFU is the quotient of."""

from __future__ import annotations

from typing import Any

from train.data.mixture import Sizes, by_share
from train.model.kinds import Kinds, sizes

PEAKS = {
    "GB300": 2500e12, "GB200": 2500e12, "B300": 2250e12, "B200": 2250e12, "GH200": 989e12,
    "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "H800": 989e12, "H20": 148e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L40": 181e12,
    "L4": 121e12, "A40": 150e12, "A30": 165e12, "A10G": 70e12, "A10": 125e12,
    "RTX PRO 6000 Max Q": 439e12, "RTX PRO 6000 Server": 480e12, "RTX PRO 6000": 504e12,
    "RTX 6000 Ada": 364e12, "RTX A6000": 155e12, "RTX 5090": 209e12, "RTX 4090": 165e12,
    "RTX 3090": 71e12, "MI300X": 1307e12, "MI325X": 1307e12, "MI250X": 191.5e12,
}  # fmt: skip
"""Dense bfloat16 operations a second with float32 sums, as the makers give them; the first name
that the device's own name contains as words counts.

The makers' figures without sparsity. Read on pages that repeat NVIDIA's tables, not on its own:
GB200, B200, B300, and GB300, where one page has 2.5 and others have less. Not looked up again for
this table: A10G, H200 NVL, RTX 5090, RTX 6000 Ada, and RTX PRO 6000 (four times its float32).
"""
PARTIAL = frozenset({"MIG", "LAPTOP"})
"""Words of devices that are less than the card that they are named after."""


def peak(device_name: str) -> float | None:
    """Return a GPU's bfloat16 operations a second, or None for one that we do not know."""
    words = device_name.upper().replace("-", " ").split()
    if PARTIAL & {*words}:
        return None
    for name, operations in PEAKS.items():
        if all(word in words for word in name.upper().split()):
            return operations
    return None


def typical(sizes: Sizes) -> float:
    """Return the length of the sample that a token is in, on average over the tokens of an epoch.

    A token attends to its own sample alone, however rows are padded or packed.
    """
    tokens = squares = 0.0
    for share, lengths in by_share(sizes):
        wide = lengths.astype(float)
        tokens += share.weight * wide.sum()
        squares += share.weight * (wide @ wide)
    return squares / tokens


def per_token(network: Any, length: float, *, referenced: bool = False) -> float | None:
    """Return the operations that training takes for one token, recomputing not counted.

    Two for each weight in the forward pass, two for the gradient of what flows through, two more
    for the gradient of a trained weight; and attention's products with half of a sample of the
    length that `typical` gives. Of routed experts only those count that a token is sent to. None
    if the configuration does not have their number. A reference is a second forward pass.
    """
    kinds, about = Kinds(network), network.config
    about = getattr(about, "text_config", None) or about
    active = _active_experts(about)
    table = network.get_input_embeddings()
    head = network.get_output_embeddings()
    products = 0.0
    for name, parameter, size in sizes(network):
        if table and parameter is table.weight and not (head and head.weight is parameter):
            continue
        share = 1.0
        if kinds.of(name.rpartition(".")[0]) == "routed experts":
            if active is None:
                return None
            share = active
        passes = (6.0 if parameter.requires_grad else 4.0) + 2.0 * referenced
        products += passes * share * size
    # Layers may differ in their heads (Gemma 4), and heads need not be as wide as the model.
    count = getattr(about, "num_hidden_layers", 0)
    layers = getattr(about, "per_layer_config", [about] * count) if count else ()
    return products + (16.0 if referenced else 12.0) * sum(map(_width, layers)) * length / 2


def _width(layer: Any) -> int:
    """Return how wide a layer's attention is; 0 for one without heads, such as Mamba's."""
    heads: int = getattr(layer, "num_attention_heads", None) or 0
    size: int | None = getattr(layer, "head_dim", None)
    return heads * size if size else bool(heads) * layer.hidden_size


def _active_experts(about: Any) -> float | None:
    """Return the share of routed experts that a token is sent to."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((count for name in names if (count := getattr(about, name, None))), None)
    chosen = getattr(about, "num_experts_per_tok", None)
    # Some configurations have a number for each layer.
    return chosen / experts if isinstance(experts, int) and isinstance(chosen, int) else None
