"""The end of the model: from hidden states to the loss, without ever holding all logits.

A vocabulary is wide: the logits of a batch and their copies in float32 are often the most memory
that a step takes. Where the head is frozen, as with LoRA, its loss and the gradient of the hidden
states are made a few rows at a time, in the same number of operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

LOGITS = 1 << 25
"""Logits that are held at a time (128 MiB in float32)."""


class Head:
    """Takes the place of an output layer's forward pass; hidden states in, sums out."""

    def __init__(self, layer: nn.Module) -> None:
        """Take over a layer; `set` tells it what to predict before each pass of the model."""
        self.raw: Tensor | None = None
        """The logits as the layer last made them, while `watched`; they hold a graph."""
        self.watched = False
        self.whole = not isinstance(layer, nn.Linear) or layer.weight.requires_grad
        """Whether all logits are made at once: the layer learns, or is no plain layer."""
        self._layer = layer
        self._forward: Callable[[Tensor], Tensor] = layer.forward
        self._kept = self._wanted = torch.empty(0, dtype=torch.int64)
        layer.forward = self._take_over

    def set(self, kept: Tensor, wanted: Tensor) -> None:
        """Say which of the flattened positions count, and what their next tokens are."""
        self._kept, self._wanted = kept, wanted

    def sums(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the number of tokens said right, from the model's output.

        The second is counted only where no gradient is wanted: in evaluation.
        """
        if not self.whole:
            return output[0], output[1].detach()
        total = functional.cross_entropy(output.float(), self._wanted, reduction="sum")
        if torch.is_grad_enabled():
            return total, torch.zeros_like(total)
        return total, (output.argmax(-1) == self._wanted).sum()

    def _take_over(self, hidden: Tensor) -> Tensor:
        rows = hidden.flatten(0, -2).index_select(0, self._kept)
        if self.whole:
            logits = self._forward(rows)
            self.raw = logits if self.watched else None
            return logits
        total: Tensor = _FrozenHeadLoss.apply(  # type: ignore[no-untyped-call]
            rows, self._layer.weight, self._layer.bias, self._wanted
        )
        return total


class _FrozenHeadLoss(torch.autograd.Function):
    """Cross entropy of a frozen linear layer, with its input's gradient made on the way."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch has no type for it)
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
    ) -> Tensor:
        learns = ctx.needs_input_grad[0]
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        correct = torch.zeros_like(total)
        gradient = torch.empty_like(rows) if learns else None
        step = max(1, LOGITS // weight.shape[0])
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            logits = functional.linear(rows[part], weight, bias).float()
            target = wanted[part, None]
            if not learns:
                correct += (logits.argmax(-1, keepdim=True) == target).sum()
            norm = logits.logsumexp(-1, keepdim=True)
            total += (norm - logits.gather(1, target)).sum(dtype=torch.float64)
            if gradient is not None:
                # softmax - one-hot, in the memory of the logits.
                logits.sub_(norm).exp_()
                logits.scatter_add_(1, target, torch.full_like(norm, -1.0))
                gradient[part] = logits.to(rows.dtype) @ weight.to(rows.dtype)
        ctx.save_for_backward(gradient)
        return torch.stack((total, correct))

    @staticmethod
    def backward(ctx: Any, output: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401  (torch's)
        (gradient,) = ctx.saved_tensors
        return gradient * output[0].to(gradient.dtype), None, None, None
