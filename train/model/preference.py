"""What a model loses on pairs of a chosen and a rejected text: DPO and ORPO.

Sums of log-probabilities over the learned tokens come as a row a pair: (chosen, rejected).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from train.config.config import Config


def sums(
    config: Config, network: nn.Module, losses: Callable[[], Tensor], counts: Tensor
) -> Tensor:
    """Return `loss` of a batch, from a function that runs the model: each token's loss, in order.

    `counts` are the learned tokens of each row, on the CPU.
    """
    reference = None
    if config.objective == "dpo":
        with torch.no_grad(), without_adapters(network):
            reference = by_pairs(losses(), counts)
    policy = by_pairs(losses(), counts)
    return loss(config, policy, reference, counts.view(-1, 2).to(policy.device, non_blocking=True))


def loss(config: Config, policy: Tensor, reference: Tensor | None, counts: Tensor) -> Tensor:
    """Return sums over the pairs: the loss, how many are won, and the rewards of both texts.

    `counts` are the learned tokens of each text; a batch without pairs has none, and weighs
    nothing. Without a reference the loss is ORPO's.
    """
    if reference is not None:
        losses, rewards = dpo(policy, reference, config.beta, config.label_smoothing)
    else:
        losses, rewards = orpo(policy / counts.clamp_min(1), config.beta)
    won = (rewards[:, 0] > rewards[:, 1]).double()
    return (torch.stack((losses, won, *rewards.T)) * (counts[:, 0] > 0)).sum(1)


def dpo(policy: Tensor, reference: Tensor, beta: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the sigmoid loss of arXiv:2305.18290, smoothed as in its conservative form."""
    rewards = beta * (policy - reference)
    margin = rewards[:, 0] - rewards[:, 1]
    losses = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
    return losses, rewards.detach()


def orpo(means: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the loss of arXiv:2403.07691: the chosen text's own, and the odds ratio's."""
    # A text of probability 1 has odds without end.
    odds = means - torch.log1p(-torch.exp(means.clamp_max(-1e-9)))
    losses = -means[:, 0] - beta * logsigmoid(odds[:, 0] - odds[:, 1])
    return losses, (beta * means).detach()


def by_pairs(losses: Tensor, counts: Tensor) -> Tensor:
    """Return the log-probabilities of texts, a row a pair, from their tokens' losses in order."""
    parts = torch.split(losses, counts.tolist())
    return -torch.stack([part.sum(dtype=torch.float64) for part in parts]).view(-1, 2)


@contextmanager
def without_adapters(network: nn.Module) -> Iterator[None]:
    """Let a model be its base for a while, without dropout.

    PEFT's own `disable_adapter` also lets the adapters be no trained weights, of which FSDP takes
    note when it first gathers them.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    training = network.training
    kinds_of_peft = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    adapted = [module for module in network.modules() if isinstance(module, kinds_of_peft)]
    network.eval()
    for module in adapted:
        module._disable_adapters = True  # noqa: SLF001
    try:
        yield
    finally:
        for module in adapted:
            module._disable_adapters = False  # noqa: SLF001
        network.train(training)
