"""Context parallelism: the places of a row cut over ranks, which share keys and values.

torch's own `context_parallel` is not used. In 2.13 it refuses CPU ranks ("aten._scaled_dot_product_
flash_attention_for_cpu does not have a sharding strategy"), and its rings let packed documents see
each other. Here ranks gather the keys and values of one layer, as Llama 3 was trained: exact with
any backend, and each document of a row is attention without a mask tensor on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from train.errors import ConfigError

NAME = "gathered"
"""Of this attention among those of transformers; one without a mask of its own gets none."""
UNKNOWN = ("sliding_window", "softcap", "s_aux")
"""What models ask of attention that is not done here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a document whose places this rank computes, and the document up to its end."""

    rows: slice
    queries: slice
    """Among this rank's places."""
    keys: slice
    """Among all places of the row."""


WHOLE = Piece(rows=slice(None), queries=slice(None), keys=slice(None))
"""Rows that are not cut, each a document."""


def pieces(starts: list[list[int]], width: int, rank: int, size: int) -> list[Piece]:
    """Return what one of `size` ranks computes of rows, by where the documents of each begin.

    A rank has one part from the front and one from the back: all see as many keys. Rows that are
    one document each are computed together.
    """
    part = width // (2 * size)
    together = all(row == [0] for row in starts)
    found = []
    for number, row in enumerate(starts[:1] if together else starts):
        rows = slice(None) if together else slice(number, number + 1)
        for at, begin in ((0, rank * part), (part, width - (rank + 1) * part)):
            for first, end in pairwise((*row, width)):
                low, high = max(first, begin), min(end, begin + part)
                if low < high:
                    queries = slice(at + low - begin, at + high - begin)
                    found.append(Piece(rows=rows, queries=queries, keys=slice(first, high)))
    return found


class Context:
    """The ranks that share the rows of a batch, and this one's attention."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.size = group.size()
        self._group = group
        self._pieces: list[Piece] = []
        AttentionInterface.register(NAME, self._attend)

    def cut(
        self, input_ids: Tensor, wanted: Tensor, position_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's places of all three; what the model computes next is of these."""
        rows, width = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(width).expand(rows, width)
        starts = [(row == 0).nonzero().flatten().tolist() for row in position_ids]
        self._pieces = pieces(starts, width, self._group.rank(), self.size)
        return self.part(input_ids), self.part(wanted), self.part(position_ids)

    def uncut(self) -> None:
        """Let what the model computes next be whole rows again, each a document."""
        self._pieces = []

    def part(self, tensor: Tensor) -> Tensor:
        """Return this rank's places of rows."""
        parts = tensor.chunk(2 * self.size, dim=1)
        return torch.cat((parts[self._group.rank()], parts[-1 - self._group.rank()]), dim=1)

    def _attend(
        self,
        _module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """Be a model's attention, as transformers calls it."""
        for name in UNKNOWN:
            if more.get(name) is not None:
                raise refusal(f"one whose attention has {name}")
        if self._pieces:
            # Together, in one collective; heads of values may be narrower than those of keys.
            both = _Gather.apply(torch.cat((key, value), -1), self._group)  # type: ignore[no-untyped-call]
            sizes = [key.shape[-1], value.shape[-1]]
            key, value = torch.split(_in_order(both), sizes, -1)
        rows: dict[int | None, list[Tensor]] = {}
        for piece in self._pieces or [WHOLE]:
            some = query[piece.rows, :, piece.queries]
            keys, values = (each[piece.rows, :, piece.keys] for each in (key, value))
            found = scaled_dot_product_attention(
                some,
                keys,
                values,
                # No tensor on a GPU with flash attention.
                attn_mask=causal_lower_right(some.shape[2], keys.shape[2]),
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=True,
            )
            rows.setdefault(piece.rows.start, []).append(found)
        whole = torch.cat([torch.cat(parts, 2) for parts in rows.values()])
        return whole.transpose(1, 2).contiguous(), None


# Names since torch 2.13, and before.
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Gather(torch.autograd.Function):
    """All ranks' tensors, one after the other; each gets the sum of all gradients of its own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        found = tensor.new_empty((group.size(), *tensor.shape))
        # gloo takes them in a row only, not stacked.
        gather(found.flatten(0, 1), tensor.contiguous(), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, output: Tensor) -> tuple[Tensor, None]:
        # In float32, as one rank alone would add them up.
        mine = output.new_empty(output.shape[1:], dtype=torch.float32)
        reduce_scatter(mine, output.float().flatten(0, 1), group=ctx.group)
        return mine.to(output.dtype), None


def _in_order(gathered: Tensor) -> Tensor:
    """Return all places of rows in their order, from every rank's two parts of them."""
    front, back = gathered.chunk(2, dim=-2)
    return torch.cat((*front, *back.flip(0)), dim=-2)


def refusal(found: str) -> ConfigError:
    """Return the refusal of a model whose rows cannot be cut."""
    message = (
        f"context_parallel: expected a model whose layers look back by plain causal attention only,"
        f" found {found}"
    )
    return ConfigError(message, hint="context_parallel: 1, and activation_checkpointing: true")
