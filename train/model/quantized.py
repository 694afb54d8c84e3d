"""Quantized bases: FP8 weights become plain ones as they are read, other formats are refused.

An FP8 weight is stored with a scale for each block of it, each row, or all of it; the weight is
their product. Rank by rank only the slices are multiplied that are read, with their scales.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

MXFP4 = "mxfp4"
"""gpt-oss: transformers itself makes plain weights of it, whole."""
SUFFIXES = {"fp8": "_scale_inv", "compressed-tensors": "_scale"}
"""Format → what a scale's name has after its weight's. Both are multiplied, whatever the name."""
FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
OF_ACTIVATIONS = re.compile(r"\.(input_scale|activation_scale|[kqv]_scale|output_scale)$")
"""Scales that serving needs: they change no weight."""
MARKS = re.compile(
    r"[-_.](fp8|fp4|mxfp4|nvfp4|awq|gptq|gguf|bnb|nf4|int[48]|[48]bit|w\d+a\d+|quantized).*$",
    re.IGNORECASE,
)
"""What the name of a quantized copy has after its original's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a base is quantized."""

    method: str
    suffix: str = ""
    """What a scale's name has after its weight's."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, if it is not one a row or one for all."""

    def kept(self, names: Iterable[str]) -> list[str]:
        """Return the names of tensors that are weights, without those of their scales."""
        every = set(names)
        scales = {name + self.suffix for name in every} & every if self.suffix else set()
        return [n for n in every if n not in scales and not OF_ACTIVATIONS.search(n)]


def scheme(config_json: Path, name: str) -> Scheme | None:
    """Return how a base is quantized, None if it is not; refuse a way that cannot be trained on."""
    about = json.loads(config_json.read_text(encoding="utf-8"))
    found = about.get("quantization_config") or about.get("compression_config")
    found = found or (about.get("text_config") or {}).get("quantization_config")
    if not found:
        return None
    method = str(found.get("quant_method", "unknown"))
    if method == MXFP4:
        return Scheme(method=method)
    if method == "fp8":
        return Scheme(
            method=method, suffix=SUFFIXES[method], block=_pair(found, "weight_block_size")
        )
    if method == "compressed-tensors" and (groups := _fp8_groups(found)):
        blocks = {_pair(weights, "block_structure") for weights in groups}
        if len(blocks) == 1:
            return Scheme(method=method, suffix=SUFFIXES[method], block=blocks.pop())
    form = ", ".join(filter(None, (method, found.get("format"))))
    raise refusal(name, f"found {form}")


def refuse_whole(config_json: Path, name: str, problem: str) -> None:
    """Refuse to read an FP8 base whole, which would take its scales for weights, or drop them."""
    how = scheme(config_json, name)
    if how and how.suffix:
        raise refusal(name, f"found {how.method} that cannot be read in slices ({problem})")


def refusal(name: str, found: str) -> ConfigError:
    """Return the refusal of a quantized base, which names its original."""
    original = MARKS.sub("", name.rstrip("/"))
    message = (
        f"name_or_path: expected weights in bfloat16, or in FP8 with the scales of fp8 or "
        f"compressed-tensors, {found} in {name}"
    )
    twin = f"name_or_path: {original}" if original != name else "name_or_path: its original"
    return ConfigError(message, hint=f"{twin}, the model in bfloat16")


def without_scale(headers: Mapping[str, Any], how: Scheme | None) -> str:
    """Return a weight in FP8 that has no scale, and would be read as noise; nothing if none is."""
    suffix = how.suffix if how else ""
    in_fp8 = (name for name, about in headers.items() if about["dtype"] in FP8)
    return next((name for name in in_fp8 if not suffix or name + suffix not in headers), "")


def _pair(found: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    rows, columns = found.get(key) or (0, 0)
    return (int(rows), int(columns)) if rows else None


def _fp8_groups(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how compressed-tensors stores weights, if all that it stores are in FP8."""
    groups = [group.get("weights") or {} for group in (found.get("config_groups") or {}).values()]
    sparse = (found.get("sparsity_config") or {}).get("format") not in {None, "dense"}
    in_fp8 = all(
        (weights.get("type"), weights.get("num_bits")) == ("float", 8)
        and weights.get("strategy") in {"tensor", "channel", "block"}
        for weights in groups
    )
    return groups if in_fp8 and not sparse and not found.get("transform_config") else []


def tensors(files: Mapping[str, Any], how: Scheme | None) -> dict[str, Any]:
    """Return slices of a base's weights by name, from opened files, those in FP8 as if plain."""
    if how is None:
        return {name: file.get_slice(name) for name, file in files.items()}
    found = {}
    for name in how.kept(files):
        found[name] = files[name].get_slice(name)
        scale = name + how.suffix
        if scale in files:
            found[name] = Dequantized(name, found[name], files[scale].get_tensor(scale), how.block)
    return found


class Dequantized:
    """A safetensors slice of a weight in FP8 that is read as the plain weight, in float32."""

    def __init__(
        self, name: str, slices: Any, scale: Tensor, block: tuple[int, int] | None
    ) -> None:
        """Match a weight with its scale; a ValueError if they do not fit together."""
        self._slices = slices
        shape = slices.get_shape()
        if slices.get_dtype() not in FP8:
            raise ValueError(
                f"{name}: expected FP8 for a weight with a scale, found {slices.get_dtype()}"
            )
        scale = scale.float()
        if scale.numel() == 1:
            scale = scale.reshape([1] * len(shape))
        elif scale.dim() == len(shape) - 1:  # one a row
            scale = scale.unsqueeze(-1)
        self._scale = scale
        # Rows, columns and, in front, experts: how many of each share a scale.
        blocks = (*[1] * (len(shape) - 2), *(block or (1, 1)))
        self._blocks = [
            size if count == 1 else 1 if count == size else part
            for size, count, part in zip(shape, scale.shape, blocks[-len(shape) :], strict=False)
        ]
        wanted = [-(-size // part) for size, part in zip(shape, self._blocks, strict=False)]
        if list(scale.shape) != wanted:
            raise ValueError(f"{name}: expected a scale of {wanted}, found {list(scale.shape)}")

    def get_shape(self) -> list[int]:
        """Return the weight's shape."""
        return list(self._slices.get_shape())

    def get_dtype(self) -> str:
        """Return what is read, as safetensors calls it."""
        return "F32"

    def __getitem__(self, index: Any) -> Tensor:
        """Read part of the weight: all of it for `...`, or a slice of each dimension."""
        shape = self.get_shape()
        given = () if index is ... else index if isinstance(index, tuple) else (index,)
        bounds = [
            (given[d] if d < len(given) else slice(None)).indices(size)
            for d, size in enumerate(shape)
        ]
        found: Tensor = self._slices[tuple(slice(*each) for each in bounds)].float()
        scale = self._scale
        for dim, (start, stop, _) in enumerate(bounds):
            if scale.shape[dim] == 1:  # for all of them
                continue
            part, stop = self._blocks[dim], max(start, stop)  # noqa: PLW2901
            first = start // part
            scale = scale.narrow(dim, first, -(-stop // part) - first)
            scale = scale.repeat_interleave(part, dim).narrow(dim, start % part, stop - start)
        return found * scale
