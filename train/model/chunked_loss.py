"""The end of the model: from hidden states to the loss, without ever holding all logits.

A vocabulary is wide: the logits of a batch and their copies in float32 are often the most memory
that a step takes. The loss of a plain linear head and its gradients are made a few rows at a time,
in the same number of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from train.model.memory import rows_at_a_time


class Head:
    """Takes the place of an output layer's forward pass; hidden states in, sums out."""

    def __init__(self, layer: nn.Module) -> None:
        """Take over a layer; `set` tells it what to predict before each pass of the model."""
        self.raw: Tensor | None = None
        """The logits as the layer last made them, while `watched`; they hold a graph."""
        self.watched = False
        self.whole = getattr(type(layer), "forward", None) is not nn.Linear.forward
        """Whether all logits are made at once: the layer is no plain one, such as with adapters."""
        self._layer = layer
        self._forward: Callable[[Tensor], Tensor] = layer.forward
        self._kept = self._wanted = torch.empty(0, dtype=torch.int64)
        layer.forward = self._take_over

    def also(self, layer: nn.Module) -> None:
        """Take over the layer that is the head where adapters are off; its logits are whole."""
        forward = layer.forward
        layer.forward = lambda hidden: forward(self._rows(hidden))

    @property
    def is_trained(self) -> bool:
        """Whether the layer's own weight learns."""
        return any(parameter.requires_grad for parameter in self._layer.parameters())

    def set(self, kept: Tensor, wanted: Tensor) -> None:
        """Say which of the flattened positions count, and what their next tokens are."""
        self._kept, self._wanted = kept, wanted

    def losses(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's loss, and which of them the model says itself, from its output.

        The second is found out only if no gradient is wanted: in evaluation.
        """
        if not self.whole:
            return output[0], output[1].detach()
        losses = functional.cross_entropy(output.float(), self._wanted, reduction="none")
        if torch.is_grad_enabled():
            return losses, torch.zeros_like(losses)
        return losses, (output.argmax(-1) == self._wanted).float()

    def sums(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the number of tokens said right, from the model's output."""
        losses, right = self.losses(output)
        return losses.sum(dtype=torch.float64), right.sum(dtype=torch.float64)

    def _rows(self, hidden: Tensor) -> Tensor:
        return hidden.flatten(0, -2).index_select(0, self._kept)

    def _take_over(self, hidden: Tensor) -> Tensor:
        rows = self._rows(hidden)
        if self.whole:
            logits = self._forward(rows)
            self.raw = logits if self.watched else None
            return logits
        kind = rows.device.type
        if torch.is_autocast_enabled(kind):  # which does not reach into a function of one's own
            rows = rows.to(torch.get_autocast_dtype(kind))
        losses: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, self._layer.weight, self._layer.bias, self._wanted, torch.is_grad_enabled()
        )
        return losses


class _LinearCrossEntropy(torch.autograd.Function):
    """Cross entropy of a linear layer's rows, with all gradients made on the way.

    Rows may count differently, but not if the layer is trained: its gradient is their plain sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        learns: bool,  # noqa: FBT001  (torch passes arguments by position only)
    ) -> Tensor:
        losses = torch.zeros((2, len(rows)), dtype=torch.float32, device=rows.device)
        # The sums of many parts are in float32; autograd casts them to the dtype of the weight.
        of_rows, of_weight, of_bias = (
            torch.zeros_like(tensor, dtype=rows.dtype if tensor is rows else torch.float32)
            if learns and tensor is not None and needed
            else None
            for tensor, needed in zip((rows, weight, bias), ctx.needs_input_grad[:3], strict=True)
        )
        low = weight.to(rows.dtype)
        low_bias = None if bias is None else bias.to(rows.dtype)
        step = rows_at_a_time(len(weight), trained=of_weight is not None)
        # One buffer of each kind for all parts: the system clears each new one, which takes time.
        held = rows.new_empty((min(step, len(rows)), len(weight)), dtype=torch.float32)
        narrow = held if rows.dtype == held.dtype else torch.empty_like(held, dtype=rows.dtype)
        # As few passes over a part as torch has kernels for: on a GPU each costs its bandwidth.
        for first in range(0, len(rows), step):
            some, target = rows[first : first + step], wanted[first : first + step, None]
            logits, logs = narrow[: len(some)], held[: len(some)]
            if low_bias is None:
                torch.mm(some, low.T, out=logits)
            else:
                torch.addmm(low_bias, some, low.T, out=logits)
            if not learns:
                losses[1, first : first + step] = logits.argmax(-1) == target.squeeze(1)
            torch.log_softmax(logits, -1, dtype=torch.float32, out=logs)
            losses[0, first : first + step] = -logs.gather(1, target).squeeze(1)
            if not learns:
                continue
            # softmax - one-hot, in the same memory.
            logs.exp_().scatter_add_(1, target, logs.new_full(target.shape, -1.0))
            if of_bias is not None:
                of_bias += logs.sum(0)
            error = logs if narrow is held else logits.copy_(logs)
            if of_rows is not None:
                torch.mm(error, low, out=of_rows[first : first + step])
            if of_weight is not None and error.dtype == of_weight.dtype:
                of_weight.addmm_(error.T, some)
            elif of_weight is not None:
                of_weight += error.T @ some
        ctx.save_for_backward(of_rows, of_weight, of_bias)
        return losses

    @staticmethod
    def backward(ctx: Any, output: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a weight's gradient is as large as the weight. torch refuses a second pass.
        of_rows, of_weight, of_bias = ctx.saved_tensors
        if of_rows is not None:
            of_rows.mul_(output[0, :, None])
        for gradient in (of_weight, of_bias):
            if gradient is not None and output.numel():
                gradient.mul_(output[0, 0])
        return of_rows, of_weight, of_bias, None, None
