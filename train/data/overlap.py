"""How many evaluation samples are also trained on: equal tokens, wherever they are from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from train.data.dataset import TokenSet

TOGETHER = 1 << 20
"""Samples compared in one go."""


def count(held_out: Iterable[TokenSet], trained: Iterable[TokenSet]) -> int:
    """Return how many samples of some sets have the hash of one of others."""
    wanted = np.concatenate([np.zeros(0, np.int64), *(each.column("hash") for each in held_out)])
    found = np.zeros(len(wanted), np.bool_)
    for hashes in (each.column("hash") for each in trained if len(wanted)):
        for first in range(0, len(hashes), TOGETHER):
            found |= np.isin(wanted, hashes[first : first + TOGETHER])
    return int(found.sum())
