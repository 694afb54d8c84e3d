"""How much arithmetic a token takes and a GPU can do: what MFU is the quotient of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.data.token_store import Ints

PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 150e12,
    "A10": 125e12,
    "RTX A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI300X": 1307e12,
    "MI325X": 1307e12,
    "MI250X": 191.5e12,
}
"""Dense bfloat16 operations a second with float32 sums, as the makers give them; the first name
that the device's own name contains as words counts."""


def peak(device_name: str) -> float | None:
    """Return a GPU's bfloat16 operations a second, or None for one that we do not know."""
    words = device_name.upper().replace("-", " ").split()
    for name, operations in PEAKS.items():
        if all(word in words for word in name.upper().split()):
            return operations
    return None


def typical(lengths: Ints) -> float:
    """Return the length of the sample that a token is in, on average over all tokens.

    A token attends to its own sample alone, however rows are padded or packed.
    """
    whole = lengths.astype(float)
    return float((whole * whole).sum() / whole.sum())


def per_token(network: Any, length: float) -> float | None:  # noqa: ANN401  (a transformers model)
    """Return the operations that training takes for one token, recomputing not counted.

    Two for each weight in the forward pass, two for the gradient of what flows through, two more
    for the gradient of a trained weight; and attention's products with half of a sample of the
    length that `typical` gives. None where only some weights are at work for a token (experts), so
    that it cannot be said.
    """
    about = network.config
    if getattr(about, "num_local_experts", None) or getattr(about, "num_experts", None):
        return None
    tables = {id(module.weight) for module in (network.get_input_embeddings(),) if module}
    head = network.get_output_embeddings()
    products = 0.0
    for parameter in network.parameters():
        is_table = id(parameter) in tables and not (head and head.weight is parameter)
        if not is_table:
            products += (6.0 if parameter.requires_grad else 4.0) * parameter.numel()
    about = getattr(about, "text_config", None) or about
    layers = getattr(about, "num_hidden_layers", 0)
    width = getattr(about, "hidden_size", 0)
    if getattr(about, "head_dim", None):  # heads need not be as wide together as the model
        width = about.num_attention_heads * about.head_dim
    return products + 12.0 * layers * width * length / 2
