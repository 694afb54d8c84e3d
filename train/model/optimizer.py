"""AdamW over this rank's shards, the clip before it, and the learning rate of a step."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from train.config.config import Config
from train.model.loss_scale import LossScale
from train.model.model import Model
from train.model.parallelize import local, sharded_as

MOMENTS = ("exp_avg", "exp_avg_sq")
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names without weight decay: transformers' Trainer has the same, and `nn.LayerNorm` besides."""


def learning_rate(config: Config, step: int, steps: int) -> float:
    """Return the rate of a step, counted from 1 as the step line prints it."""
    warm_up = warm_up_steps(config, steps)
    if step <= warm_up:
        return config.learning_rate * step / warm_up
    gone = (step - 1 - warm_up) / max(1, steps - warm_up)
    match config.lr_scheduler_type:
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * gone))
        case "linear":
            left = 1 - gone
        case _:
            left = 1.0
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)


def warm_up_steps(config: Config, steps: int) -> int:
    """Return in how many of the steps the rate rises; a first try may have fewer than the file."""
    return min(steps, config.warmup_steps or round(config.warmup_ratio * steps))


def without_decay(network: nn.Module) -> set[str]:
    """Return the names of the weights without weight decay: biases, and weights of norms."""
    return {
        name
        for prefix, module in network.named_modules()
        for name, _ in module.named_parameters(prefix, recurse=False)
        if isinstance(module, nn.LayerNorm) or UNDECAYED.search(name.lower())
    }


class Optimizer:
    """AdamW of what is trained, in torch's own implementation.

    It works on this rank's plain part of each parameter: the mathematics is element by element, and
    the way through DTensor costs more time than the update itself.
    """

    def __init__(self, config: Config, model: Model) -> None:
        self._model = model
        self.loss_scale = LossScale() if model.scales_loss else None
        """What the next step's loss is multiplied by, in float16."""
        self._clip = config.max_grad_norm
        self._parts = {n: nn.Parameter(local(p)) for n, p in model.trained.items()}
        undecayed = without_decay(model.network)
        groups: list[dict[str, Any]] = [
            {"params": [part for name, part in self._parts.items() if name not in undecayed]},
            {
                "params": [part for name, part in self._parts.items() if name in undecayed],
                "weight_decay": 0.0,
            },
        ]
        self._adamw = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def squared_norm_here(self) -> Tensor:
        """Return this rank's part of the gradient's squared norm; the sum over ranks is whole."""
        gradients = self._gradients()
        if not gradients:
            return torch.zeros((), dtype=torch.float64)
        norms = torch.stack(torch._foreach_norm(gradients))  # noqa: SLF001  (as clip_grad_norm_ does)
        return norms.double().square().sum() / self._model.copies

    @torch.no_grad()
    def step(self, *, scale: float, norm: float, rate: float) -> None:
        """Scale the gradients, clip them, change the weights, and forget the gradients.

        Args:
            scale: What makes a sum over tokens the mean.
            norm: The gradient's norm after that scaling, over all ranks.
            rate: This step's learning rate.
        """
        if self._clip and norm > self._clip:
            scale *= self._clip / (norm + 1e-6)
        torch._foreach_mul_(self._gradients(), scale)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        for name, parameter in self._model.trained.items():
            part = self._parts[name]
            # FSDP may have moved its shards to other memory when the first step began.
            part.data = local(parameter)
            # What got no gradient here may have one on another number of ranks: it is a zero.
            gradient = parameter.grad
            part.grad = torch.zeros_like(part) if gradient is None else local(gradient)
            parameter.grad = None
        self._adamw.step()
        self._adamw.zero_grad()

    def forget(self) -> None:
        """Drop the gradients without an update."""
        for parameter in self._model.trained.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return the moments by name, made now if no step has made them yet."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._model.trained.items():
            part = self._parts[name]
            state = self._adamw.state[part]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=part.device)
                for moment in MOMENTS:
                    state[moment] = torch.zeros_like(part, requires_grad=False)
            found |= {f"{name}.{m}": sharded_as(parameter, state[m]) for m in MOMENTS}
        return found

    def set_step(self, step: int) -> None:
        """Continue AdamW's bias correction after this many steps."""
        for part in self._parts.values():
            self._adamw.state[part]["step"].fill_(step)

    def _gradients(self) -> list[Tensor]:
        grads = (p.grad for p in self._model.trained.values())
        return [local(g) for g in grads if g is not None]
