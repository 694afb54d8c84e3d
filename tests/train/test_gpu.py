"""A training on one GPU; where a CPU has the same path, each test takes it too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train.outcome import close, weights
from tests.train.world import World
from train.config.config import Config

pytestmark = pytest.mark.torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize(
    ("device", "attention"),
    [
        ("cpu", "sdpa"),
        pytest.param("cuda", "sdpa", marks=pytest.mark.gpu),
        pytest.param("cuda", "flash_attention_2", marks=pytest.mark.gpu),
    ],
)
def test_bfloat16_learns_what_float32_does(world: World, device: str, attention: str) -> None:
    if attention.startswith("flash"):
        pytest.importorskip("flash_attn")
    how: dict[str, Any] = {
        "batching": "packed", "global_batch_size": 4, "per_device_train_batch_size": 1,
        "max_steps": 4,
    }  # fmt: skip
    exact = world.run(**how).losses()
    low = world.run(gpu=device == "cuda", dtype="bfloat16", attn_implementation=attention, **how)
    assert low.losses() == pytest.approx(exact, rel=0.02)
    assert low.losses()[4] < low.losses()[1]


@pytest.mark.parametrize("device", DEVICES)
def test_one_rank_may_be_sharded(world: World, device: str) -> None:
    """With NCCL on a GPU."""
    how: dict[str, Any] = {"gpu": device == "cuda", "max_steps": 3}
    alone = world.run(dtype="float32", **how)
    sharded = world.run(dtype="float32", parallel="fsdp", **how)
    assert f"Mesh:       sharded over 1 ranks (FSDP) on {device}" in sharded.said()
    assert close(alone.losses(), sharded.losses())


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_written_meanwhile_is_resumed_bit_for_bit(world: World, device: str) -> None:
    how: dict[str, Any] = {
        "gpu": device == "cuda", "parallel": "fsdp", "save_steps": 2, "async_save": True,
        "deterministic": True, "save_total_limit": 9,
    }  # fmt: skip
    whole = world.run(**how)
    resumed = world.run(**how, resume_from_checkpoint=str(whole.output / "step-000002"))
    assert list(resumed.losses()) == [3, 4, 5, 6]
    assert weights(resumed) == weights(whole)


def little_memory(_rank: int) -> None:
    """Leave the process some MiB of the GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(24 * 2**20 / total)


@pytest.mark.gpu
def test_a_gpu_without_room_is_named_without_a_traceback(world: World) -> None:
    run = world.start(gpu=True, before=little_memory, per_device_train_batch_size=64,
                      global_batch_size=64)  # fmt: skip
    assert run.wait() == [2], run.said()
    assert "expected room in this GPU's memory, found: CUDA out of memory" in run.said()
    assert "activation_checkpointing: true" in run.said()
    assert "Traceback" not in run.said()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("largest", [0.0, 0.5])
def test_the_optimizer_is_adamw_with_a_clip(
    base: Config, on_device: Callable[..., None], device: str, largest: float
) -> None:
    """As torch's own, one parameter after the other, computes it."""
    on_device(compare_with_adamw, device, base, largest)


def compare_with_adamw(device: str, base: Config, largest: float) -> None:
    from dataclasses import replace

    from train.model.optimizer import Optimizer

    torch.manual_seed(0)
    config = replace(base, max_grad_norm=largest, weight_decay=0.1)
    sizes = [(3, 5), (7,), (65, 33)]
    ours = {f"p{n}": torch.randn(size, device=device) for n, size in enumerate(sizes)}
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in ours.values()]
    ours = {name: torch.nn.Parameter(tensor) for name, tensor in ours.items()}
    network = torch.nn.ParameterDict(ours)
    model: Any = SimpleNamespace(trained=ours, copies=1, network=network, scales_loss=False)
    optimizer = Optimizer(config, model)
    reference = torch.optim.AdamW(
        theirs, lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon, weight_decay=0.1, foreach=False, fused=False,
    )  # fmt: skip
    for _ in range(5):
        for mine, other in zip(ours.values(), theirs, strict=True):
            gradient = torch.randn_like(mine)
            mine.grad, other.grad = gradient.clone() * 4, gradient
        norm = optimizer.squared_norm_here().sqrt().item() / 4
        optimizer.step(scale=0.25, norm=norm, rate=config.learning_rate)
        if largest:
            torch.nn.utils.clip_grad_norm_(theirs, largest)
        reference.step()
    for mine, other in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach())
