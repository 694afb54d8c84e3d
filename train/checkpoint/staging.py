"""A copy in host memory of what is trained: a checkpoint is written from it in the background."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

PINNED_FROM = 1 << 30
"""Bytes on a rank's GPU from which pinned memory, several times as fast, is worth its setup."""


class Staging:
    """Copies states that have the same tensors each time."""

    def __init__(self) -> None:
        self._pins = True
        self._pinned: DefaultStager | None = None
        """Keeps its memory between copies: pinning takes as long as a slow copy."""

    def copy(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a copy that training leaves alone; it is good until the next one is made."""
        if self._pins and bytes_on_gpu(state) >= PINNED_FROM:
            try:
                self._pinned = self._pinned or _stager(pinned=True)
                return _stage(self._pinned, state)
            except RuntimeError as error:  # an error of the GPU itself comes again below
                print(f"checkpoint: copied without pinned memory: {error}", file=sys.stderr)
                if self._pinned:
                    self._pinned.close()
                self._pins, self._pinned = False, None
                # CUDA reports a failed cudaHostRegister at the next kernel too: let this be it.
                with suppress(AssertionError, RuntimeError):
                    torch.zeros(1, device="cuda")
        stager = _stager(pinned=False)
        copied = _stage(stager, state)
        stager.close()  # or it would keep its memory too
        return copied


def _stage(stager: DefaultStager, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return cast("dict[str, Tensor]", stager.stage(dict(state)))


def bytes_on_gpu(state: Mapping[str, Tensor]) -> int:
    """Return how many bytes of a state this rank holds on its GPU."""
    held = (t.to_local() if isinstance(t, DTensor) else t for t in state.values())
    return sum(tensor.nbytes for tensor in held if tensor.is_cuda)


def _stager(*, pinned: bool) -> DefaultStager:
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=pinned,
        )
    )
