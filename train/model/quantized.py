"""Quantized bases: weights in FP8, integers and mxfp4 become plain ones as they are read.

A weight is stored with a scale for each block of it, each row, or all of it; the weight is their
product. Rank by rank only the slices are multiplied that are read, with their scales. Other formats
are refused.
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

SUFFIXES = {"fp8": "_scale_inv", "compressed-tensors": "_scale", "mxfp4": "_scales"}
"""Format → what a scale's name has after its weight's. Both are multiplied, whatever the name."""
PACKED, BLOCKS = "_packed", "_blocks"
"""What the name of a weight has if its numbers are parts of integers, or gpt-oss's mxfp4."""
FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
SCALED = FP8 | {"I8", "I32"}
NOT_WEIGHTS = re.compile(r"\.(input_scale|activation_scale|[kqv]_scale|output_scale|weight_shape)$")
"""What serving needs, such as scales of activations: it changes no weight."""
FORMS = frozenset({
    ("float-quantized", "float", 8), (None, "float", 8), ("naive-quantized", "float", 8),
    ("int-quantized", "int", 8), ("naive-quantized", "int", 8),
    ("pack-quantized", "int", 4), ("pack-quantized", "int", 8),
})  # fmt: skip
"""What compressed-tensors writes and is read here: format, type and bits of weights."""
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
    bits: int = 0
    """Of a number that is a part of an integer of 32 bits."""

    def kept(self, names: Iterable[str]) -> dict[str, str]:
        """Return the weights' own names, each with that of the tensor that holds it."""
        every = set(names)
        found = {self.plain(name): name for name in every if not NOT_WEIGHTS.search(name)}
        return {n: held for n, held in found.items() if n not in {m + self.suffix for m in found}}

    def plain(self, name: str) -> str:
        """Return the name that a weight has where it is not quantized."""
        ending = PACKED if self.bits else BLOCKS if self.method == "mxfp4" else ""
        return name.removesuffix(ending)

    def count(self, name: str, numbers: int) -> int:
        """Return how many weights a tensor holds that has so many numbers, by its name."""
        if self.bits and name.endswith(PACKED):
            return numbers * (32 // self.bits)
        if self.method == "mxfp4" and name.endswith(BLOCKS):
            return numbers * 2
        plain = self.plain(name)
        is_other = plain.endswith(self.suffix) or NOT_WEIGHTS.search(name)
        return 0 if is_other else numbers


def scheme(config_json: Path, name: str) -> Scheme | None:
    """Return how a base is quantized, None if it is not; refuse a way that cannot be trained on."""
    about = json.loads(config_json.read_text(encoding="utf-8"))
    found = about.get("quantization_config") or about.get("compression_config")
    found = found or (about.get("text_config") or {}).get("quantization_config")
    if not found:
        return None
    method = str(found.get("quant_method", "unknown"))
    if method == "mxfp4":
        return Scheme(method=method, suffix=SUFFIXES[method])
    if method == "fp8":
        return Scheme(
            method=method, suffix=SUFFIXES[method], block=_pair(found, "weight_block_size")
        )
    if method == "compressed-tensors" and (groups := _groups(found)):
        kinds = {
            Scheme(
                method=method,
                suffix=SUFFIXES[method],
                block=(1, int(size)) if (size := weights.get("group_size") or 0) > 0
                else _pair(weights, "block_structure"),
                bits=weights["num_bits"] if found.get("format") == "pack-quantized" else 0,
            )
            for weights in groups
        }  # fmt: skip
        if len(kinds) == 1:
            return kinds.pop()
    form = ", ".join(filter(None, (method, found.get("format"))))
    raise refusal(name, f"found {form}")


def refuse_whole(config_json: Path, name: str, problem: str) -> None:
    """Refuse to read a quantized base whole: that would mix scales with weights, or drop them."""
    how = scheme(config_json, name)
    if how:
        raise refusal(name, f"found {how.method} that cannot be read in slices ({problem})")


def refusal(name: str, found: str) -> ConfigError:
    """Return the refusal of a quantized base, which names its original."""
    original = MARKS.sub("", name.rstrip("/"))
    message = (
        f"name_or_path: expected weights in bfloat16, fp8, mxfp4, or compressed-tensors of FP8, "
        f"int8 or int4, {found} in {name}"
    )
    twin = f"name_or_path: {original}" if original != name else "name_or_path: its original"
    more = " (with load_in_4bit: true)" if "bitsandbytes" in found else ""
    return ConfigError(message, hint=f"{twin}, the model in bfloat16{more}")


def without_scale(headers: Mapping[str, Any], how: Scheme | None) -> str:
    """Return a quantized weight without a scale, which would be noise; nothing if none is."""
    kinds = SCALED if how else FP8  # a plain model may have integers of its own
    small = {name for name, about in headers.items() if about["dtype"] in kinds}
    if how is None:
        return min(small, default="")
    kept = how.kept(headers).items()
    return next((held for n, held in kept if held in small and n + how.suffix not in headers), "")


def _pair(found: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    rows, columns = found.get(key) or (0, 0)
    return (int(rows), int(columns)) if rows else None


def _groups(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how compressed-tensors stores weights, if all of it can be read."""
    groups = [group.get("weights") or {} for group in (found.get("config_groups") or {}).values()]
    sparse = (found.get("sparsity_config") or {}).get("format") not in {None, "dense"}
    known = all(
        (found.get("format"), weights.get("type"), weights.get("num_bits")) in FORMS
        and weights.get("strategy") in {"tensor", "channel", "block", "group"}
        and weights.get("symmetric", True)
        and weights.get("actorder") in {None, "static", "weight"}
        for weights in groups
    )
    return groups if known and not sparse and not found.get("transform_config") else []


def tensors(files: Mapping[str, Any], how: Scheme | None) -> dict[str, Any]:
    """Return slices of a base's weights by name, from opened files, those in FP8 as if plain."""
    if how is None:
        return {name: file.get_slice(name) for name, file in files.items()}
    found = {}
    for name, held in how.kept(files).items():
        found[name] = files[held].get_slice(held)
        scale = name + how.suffix
        if held.endswith(BLOCKS) and scale in files:
            found[name] = Mxfp4(found[name], files[scale].get_slice(scale))
        elif scale in files:
            slices = Unpacked(found[name], how.bits) if how.bits else found[name]
            found[name] = Dequantized(name, slices, files[scale].get_tensor(scale), how.block)
    return found


class Unpacked:
    """A safetensors slice of integers of 4 or 8 bits that are stored as parts of larger ones."""

    def __init__(self, slices: Any, bits: int) -> None:
        self._slices, self._bits = slices, bits

    def get_shape(self) -> list[int]:
        """Return the shape of what is in them."""
        rows, columns = self._slices.get_shape()
        return [rows, columns * (32 // self._bits)]

    def get_dtype(self) -> str:
        """Return what is stored, as safetensors calls it."""
        return str(self._slices.get_dtype())

    def __getitem__(self, index: tuple[slice, slice]) -> Tensor:
        """Read some rows and columns."""
        import torch

        rows, columns = index
        each, first = 32 // self._bits, columns.start
        held = self._slices[rows, first // each : -(-columns.stop // each)]
        shifts = torch.arange(each, dtype=torch.int32) * self._bits
        parts = (held.unsqueeze(-1) >> shifts) & (1 << self._bits) - 1
        # Unsigned: zero is in the middle.
        wanted = parts.flatten(1).narrow(1, first % each, max(0, columns.stop - first))
        numbers: Tensor = wanted - (1 << self._bits - 1)
        return numbers


class Mxfp4:
    """The experts of a layer of gpt-oss in mxfp4, which are read as plain weights, some at a time.

    Two numbers are in a byte, and 32 of them share a power of two.
    """

    def __init__(self, blocks: Any, scales: Any) -> None:
        self._blocks, self._scales = blocks, scales

    def get_shape(self) -> list[int]:
        """Return the shape of the plain weights, whose columns are the stored rows."""
        experts, rows, groups, size = self._blocks.get_shape()
        return [experts, groups * size * 2, rows]

    def get_dtype(self) -> str:
        """Return what is read, as safetensors calls it."""
        return "BF16"

    def __getitem__(self, index: Any) -> Tensor:
        """Read part of the weights: the experts that are asked for, and of those the rest."""
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        given = index if isinstance(index, tuple) else (slice(None),) if index is ... else (index,)
        blocks, scales = self._blocks[given[0]], self._scales[given[0]]
        whole: Tensor = convert_moe_packed_tensors(blocks, scales)
        part: Tensor = whole[(slice(None), *given[1:])]
        return part


class Dequantized:
    """A safetensors slice of a quantized weight that is read as the plain weight, in float32."""

    def __init__(
        self, name: str, slices: Any, scale: Tensor, block: tuple[int, int] | None
    ) -> None:
        """Match a weight with its scale; a ValueError if they do not fit together."""
        self._slices = slices
        shape = slices.get_shape()
        if slices.get_dtype() not in SCALED:
            raise ValueError(
                f"{name}: expected FP8 or integers for a weight with a scale, found "
                f"{slices.get_dtype()}"
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
