"""From samples to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from train.data.encoding import BEGINS, IGNORED
from train.data.images import Picture, Vision
from train.data.mixture import Mixture
from train.data.token_store import Ints

MULTIPLE = 8
"""Rows are padded to a multiple of this: GPUs multiply such shapes fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass of one rank; right-padded rows, so causal attention needs no mask."""

    input_ids: Ints
    labels: Ints
    """As transformers wants them: not shifted, -100 for tokens without a loss."""
    position_ids: Ints | None
    """Only for packed rows: counts from 0 in each sample, which keeps them apart."""
    valid: int
    """Labels that count, after the shift."""
    tokens: int
    """Places that hold a token of a sample."""
    vision: dict[str, Any] = field(default_factory=dict)
    """What the model gets of images, as tensors by its own names."""
    pairs: int = 0
    """Pairs of a chosen and a rejected text, a row each, one after the other."""


def collate(
    data: Mixture,
    rows: Sequence[Ints],
    *,
    packed: bool,
    pairs: bool = False,
    vision: Vision | None = None,
    blank: tuple[list[int], Picture] | None = None,
    multiple: int = MULTIPLE,
) -> Batch:
    """Return rows of samples as one batch; without rows, one that weighs nothing.

    A pair is two rows: its chosen text, and its rejected one. Without images a batch gets the row
    of a blank one, which weighs nothing, if there is one.
    """
    contents = [[data.sample(int(number)) for number in row] for row in rows]
    if pairs:
        contents = [[half] for (both,) in contents for half in _halves(*both)]
    pictures = [p for row in rows for n in row for p in data.pictures(int(n))] if vision else []
    if blank and not pictures:
        ids = np.asarray(blank[0])
        contents.append([(ids, np.full_like(ids, IGNORED))])
        pictures = [blank[1]]
    longest = max((sum(len(ids) for ids, _ in content) for content in contents), default=2)
    width = -(-longest // multiple) * multiple
    shape = (max(1 + pairs, len(contents)), width)
    input_ids, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
    position_ids = np.zeros(shape, np.int64)
    tokens = 0
    for line, content in enumerate(contents):
        at = 0
        for ids, wanted in content:
            end = at + len(ids)
            input_ids[line, at:end] = ids
            labels[line, at + 1 : end] = wanted[1:]  # nothing before a sample predicts its first
            position_ids[line, at:end] = np.arange(len(ids))
            at = end
        position_ids[line, at:] = np.arange(width - at)
        tokens += at
    return Batch(
        input_ids=input_ids,
        labels=labels,
        position_ids=position_ids if packed else None,
        valid=int((labels != IGNORED).sum()),  # the first of a row never counts
        tokens=tokens,
        vision=vision.inputs(input_ids, pictures) if vision else {},
        pairs=len(rows) if pairs else 0,
    )


def _halves(ids: Ints, labels: Ints) -> Iterator[tuple[Ints, Ints]]:
    (second,) = np.flatnonzero(labels == BEGINS)
    for half in (slice(None, second), slice(second, None)):
        yield ids[half], labels[half]
