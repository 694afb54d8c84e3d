"""What a decoder layer keeps for the backward pass, in bytes for each token, from config.json.

The terms were counted with `torch.autograd.graph.saved_tensors_hooks` (tests/train/model/
test_activations.py counts them again): torch 2.13, transformers 5.24, peft 0.21, SDPA without a
mask, PEFT's input casts off. Other attention kernels that store no score matrix keep as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LOW = 2
"""Bytes of a number in bfloat16."""
EXACT = 4
"""Bytes of a number that a norm works on, in any dtype."""
READS = 2
"""Inputs of a layer that linear layers read: of q, k and v, and of gate and up."""
INTO = 5
"""Linear layers that read the hidden state: q, k, v, gate and up."""
LINEAR = 7
"""Linear layers of a layer."""

MASKED = (
    "packed rows with attn_implementation: sdpa get a mask, which rules out the fast kernel on a "
    "GPU; flash_attention_2 needs no mask (pip install flash-attn), and batching: balanced none "
    "either"
)
"""A remark. transformers leaves `enable_gqa` out with a mask as well (sdpa_attention.py, 5.24), and
torch's flash kernel takes none (`sdp_utils.cpp`, check_for_attn_mask)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Numbers per token that pass through a model's layers, summed over all of them."""

    hidden: int
    queries: int
    """Of all heads."""
    keys: int
    """Of all heads of the keys; the values have as many."""
    dense: int
    """Inner width of dense MLPs and shared experts."""
    routed: int
    """Inner width of the routed experts that one token visits, together."""
    copies: int
    """Hidden states that routed experts return for a token."""
    layers: int
    heads: int
    """Of all layers together."""

    @classmethod
    def of(cls, about: dict[str, Any]) -> Widths:
        """Read them from config.json; what it does not name is as in Llama."""
        layers = first(about, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        width = first(about, "hidden_size", "n_embd", "d_model")
        heads = first(about, "num_attention_heads", "n_head", "n_heads") or 1
        latent = sum(first(about, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
        size = latent or first(about, "head_dim") or width // heads
        # Latent attention (DeepSeek) expands its keys to all heads.
        keys = heads if latent else first(about, "num_key_value_heads") or heads
        if isinstance(of_layers := about.get("intermediate_size"), list):  # Gemma 3n
            about = about | {"intermediate_size": max(of_layers)}
        inner = first(about, "intermediate_size", "n_inner", "ffn_dim") or 4 * width
        visited = first(about, "num_experts_per_tok", "num_experts_per_token", "top_k_experts")
        of_expert = first(about, "moe_intermediate_size", "expert_ffn_hidden_size") or inner
        shared = first(about, "shared_expert_intermediate_size") or (
            first(about, "n_shared_experts", "num_shared_experts") * of_expert
        )
        sparse = layers - first(about, "first_k_dense_replace") if visited else 0
        return cls(
            hidden=layers * width,
            queries=layers * heads * size,
            keys=layers * keys * size,
            dense=(layers - sparse) * inner + sparse * shared,
            routed=sparse * visited * of_expert,
            copies=sparse * visited * width,
            layers=layers,
            heads=layers * heads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What of a training changes what is kept."""

    full: bool
    """Whether all weights are trained, else LoRA."""
    autocast: bool
    """Whether float32 weights are cast in each product (single and DDP), not by FSDP."""
    rank: int
    dropout: bool
    qk_norm: bool
    norms: int
    """Of a layer, as wide as the hidden state."""
    masked: bool
    """Whether attention gets a mask (packed rows): keys and values are repeated for each head."""
    scores: int
    """Attention scores of a head and token: with eager attention the length of a row, else 0."""
    dora: bool
    """Whether each linear layer is scaled by row (DoRA): its output and the adapter's are kept."""
    size: int = LOW
    """Bytes of a number that matrix products work on."""
    context: int = 1
    """Ranks that share a row: a layer keeps the keys and values of all of them."""


def per_token(widths: Widths, method: Method) -> float:
    """Return the bytes of all layers together that a token keeps."""
    low = method.size
    hidden = method.norms * EXACT + READS * low
    if method.full:
        hidden += method.norms * low  # a trained weight of a norm needs what it multiplies
        if method.autocast:
            # The hidden state is float32, and each layer that reads it casts a copy of its own.
            hidden += method.norms * (EXACT - low) + (INTO - READS) * low
    kept = float(hidden * widths.hidden)
    keys = widths.queries if method.masked else widths.keys
    kept += 2 * low * (widths.queries + keys * method.context)  # q and the result, k and v
    if method.qk_norm:
        kept += EXACT * (widths.queries + widths.keys)
    # Gate, its activation, up, and their product, which a frozen layer does not need.
    kept += low * (4 * widths.dense + (3 + method.full) * widths.routed)
    kept += (1 + method.full) * low * widths.copies
    # Softmax in float32, and its cast.
    kept += (EXACT + (low if low < EXACT else 0)) * method.scores * widths.heads
    if not method.full:
        kept += LINEAR * low * method.rank * widths.layers
        if method.dropout:  # its mask, and a copy of its own for each adapter
            kept += (1 + low) * (INTO * widths.hidden + widths.queries + widths.dense)
        if method.dora:
            outputs = 2 * (widths.hidden + widths.keys + widths.dense) + widths.queries
            kept += 2 * low * outputs
    return kept


def passing(widths: Widths, method: Method) -> float:
    """Return the bytes that one layer's backward pass has besides, for each token.

    These are the gradients of gate, up and the hidden state, and what a norm computes in float32.
    """
    found = method.size * (2 * (widths.dense + widths.routed) + widths.hidden)
    if method.size < EXACT:
        found += 3 * EXACT * widths.hidden
    return found / max(1, widths.layers)


def first(about: dict[str, Any], *names: str) -> int:
    """Return the first of these keys that is set, else 0."""
    return int(next((about[name] for name in names if about.get(name)), 0))
