"""AdamW decays what transformers' Trainer decays, and takes up the moments of older checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.train.families import FAMILIES
from tests.train.world import World

if TYPE_CHECKING:
    from torch import nn

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),  # peft sets it itself
]

HOW: dict[str, Any] = {
    "method": "full", "weight_decay": 0.1, "max_steps": 20,
    "lr_scheduler_type": "constant", "warmup_steps": 0, "max_grad_norm": 0.0,
}  # fmt: skip


def trainers_decayed(network: nn.Module) -> set[str]:
    """Return the names that transformers' Trainer gives weight decay."""
    from transformers import Trainer

    nobody: Any = None  # (the method looks at nothing of the Trainer)
    return set(Trainer.get_decay_parameter_names(nobody, network))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_names_without_decay_are_the_trainers(family: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.train.families import COMMON
    from train.model.optimizer import without_decay

    with torch.device("meta"):
        shape = AutoConfig.for_model(family, **COMMON | FAMILIES[family])
        network = AutoModelForCausalLM.from_config(shape)
    every = {name for name, _ in network.named_parameters()}
    assert without_decay(network) == every - trainers_decayed(network)
    assert without_decay(network), "there are norms"
    adapted: Any = get_peft_model(
        network, LoraConfig(target_modules=r".*\.(q_proj|qkv_proj|c_attn)")
    )
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert not trained & without_decay(adapted)
    assert trained <= trainers_decayed(adapted)


def one_group(_rank: int) -> None:
    """Decay everything, as versions did before there were two groups."""
    from train.model import optimizer

    patch.object(optimizer, "without_decay", lambda _: set()).start()


@pytest.mark.parametrize("nodes", [(1,), (2,)])
def test_moments_that_one_group_wrote_are_taken_up(world: World, nodes: tuple[int, ...]) -> None:
    how: dict[str, Any] = HOW | {"nodes": nodes, "max_steps": 4, "weight_decay": 0.0}
    old = world.run(**how, before=one_group, save_steps=2)
    again = world.run(**how, resume_from_checkpoint=str(old.output / "step-000002"))
    assert again.losses() == {step: loss for step, loss in old.losses().items() if step > 2}
