"""The loss made a few rows at a time is the loss, and so are its gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.lazy_torch import torch
from tests.train.outcome import close
from tests.train.world import World

pytestmark = pytest.mark.torch

WORDS = 1031


@pytest.mark.parametrize("trained", [(), ("weight",), ("weight", "bias"), ("bias",)])
@pytest.mark.parametrize(("rows", "at_a_time"), [(0, 5), (1, 5), (37, 1), (37, 5), (37, 1000)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_linear_heads_loss_is_made_in_parts(
    on_device: Callable[..., None],
    rows: int,
    at_a_time: int,
    trained: tuple[str, ...],
    precision: str,
    device: str,
) -> None:
    on_device(compare_with_the_whole, device, rows, at_a_time, trained, precision)


def compare_with_the_whole(
    device: str, rows: int, at_a_time: int, trained: tuple[str, ...], precision: str
) -> None:
    from train.model import memory

    with (
        mock.patch.object(memory, "LOGITS_AT_A_TIME", WORDS * at_a_time),
        mock.patch.object(memory, "TRAINED_ROWS", at_a_time),
    ):
        compare_in_parts(device, rows, trained, precision)


def compare_in_parts(device: str, rows: int, trained: tuple[str, ...], precision: str) -> None:
    from torch.nn import functional

    from train.model.chunked_loss import Head

    torch.manual_seed(0)
    layer = torch.nn.Linear(6, WORDS, bias="bias" in trained, device=device)
    hidden = torch.randn(2, 40, 6, device=device)
    if precision == "bfloat16":
        layer, hidden = layer.bfloat16(), hidden.bfloat16()
    hidden.requires_grad_()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in trained)
    learning = [hidden, *(getattr(layer, name) for name in trained)]
    kept = torch.randperm(80, device=device)[:rows]
    wanted = torch.randint(WORDS, (rows,), device=device)

    with torch.autocast(device, enabled=precision == "autocast"):
        logits = functional.linear(hidden.flatten(0, 1)[kept], layer.weight, layer.bias)
        whole = functional.cross_entropy(logits.float(), wanted, reduction="sum")
        theirs = torch.autograd.grad(whole * 3, learning)

        head = Head(layer)
        assert not head.whole
        head.set(kept, wanted)
        total, _ = head.sums(layer(hidden))
        mine = torch.autograd.grad(total * 3, learning)
        with torch.no_grad():
            evaluated, correct = head.sums(layer(hidden))

    assert total.item() == pytest.approx(whole.item(), rel=1e-6)
    assert evaluated.item() == pytest.approx(whole.item(), rel=1e-6)
    assert int(correct) == int((logits.argmax(-1) == wanted).sum())
    rounding = 1e-5 if precision == "float32" else 1e-2
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert torch.linalg.norm((one - other).float()) <= rounding * other.float().norm()


def test_parts_that_are_many_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn import functional

    from train.model import memory
    from train.model.chunked_loss import Head

    monkeypatch.setattr(memory, "LOGITS_AT_A_TIME", 1)
    monkeypatch.setattr(memory, "TRAINED_ROWS", 1)
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 7, bias=False).bfloat16()
    hidden, wanted = torch.rand(1, 2000, 4).bfloat16(), torch.randint(7, (2000,))
    logits = functional.linear(hidden[0].double(), layer.weight.double())
    exact = functional.cross_entropy(logits, wanted, reduction="sum")
    (expected,) = torch.autograd.grad(exact, layer.weight)

    head = Head(layer)
    head.set(torch.arange(2000), wanted)
    (found,) = torch.autograd.grad(head.sums(layer(hidden))[0], layer.weight)
    # Added up in bfloat16, 2000 parts are 9 % off.
    assert torch.linalg.norm((found - expected).float()) < 1e-2 * expected.float().norm()


def test_gradients_used_up_are_not_used_again() -> None:
    from train.model.chunked_loss import Head

    layer = torch.nn.Linear(4, 7, bias=False)
    head = Head(layer)
    head.set(torch.arange(3), torch.arange(3))
    total, _ = head.sums(layer(torch.randn(1, 3, 4)))
    total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("whole", [True, False])
def test_no_logits_outlive_the_backward_pass(*, whole: bool) -> None:
    from train.model.chunked_loss import Head

    def logits() -> list[torch.Tensor]:
        return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape[-1:] == (WORDS,)]

    layer = torch.nn.Linear(6, WORDS, bias=False)
    head = Head(layer)
    head.whole = whole
    head.set(torch.arange(30), torch.arange(30))
    gc.collect()
    # Tests that ran before in this process may have left tensors of any size.
    others = logits()
    total, _ = head.sums(layer(torch.randn(1, 40, 6)))
    total.backward()  # type: ignore[no-untyped-call]
    del total
    assert len(logits()) <= len(others)


def test_a_head_with_adapters_is_left_whole() -> None:
    from peft import LoraConfig
    from peft.tuners.lora import Linear as WithAdapters

    from train.model.chunked_loss import Head

    layer = WithAdapters(torch.nn.Linear(6, 11), "default", LoraConfig(r=2), r=2)
    head = Head(layer)
    assert head.whole
    head.set(torch.tensor([3]), torch.tensor([2]))
    assert layer(torch.randn(1, 8, 6)).shape == (1, 11)


def test_a_linear_head_with_a_forward_pass_of_its_own_is_left_whole() -> None:
    from train.model.chunked_loss import Head

    class Normed(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.nn.functional.normalize(hidden))

    assert Head(Normed(6, 11)).whole
    assert not Head(torch.nn.Linear(6, 11)).whole


def whole_logits(_rank: int) -> None:
    from train.model.model import Model

    def try_head(self: Model) -> None:
        self._head.whole = True

    Model.try_head = try_head  # type: ignore[method-assign]


def three_rows_at_a_time(_rank: int) -> None:
    from train.model import memory
    from train.model.model import Model

    memory.LOGITS_AT_A_TIME, memory.TRAINED_ROWS = 1, 3
    real = Model.try_head

    def try_head(self: Model) -> None:
        real(self)
        assert not self._head.whole

    Model.try_head = try_head  # type: ignore[method-assign]


@pytest.mark.parametrize("model", [pytest.param("model", marks=pytest.mark.soak), "tied"])
def test_a_trained_head_in_parts_is_the_same_on_sharded_ranks(
    world: World, tiny: Path, model: str
) -> None:
    how: dict[str, Any] = {
        "name_or_path": str(tiny / model), "method": "full", "learning_rate": 1e-3,
        "eval_steps": 3,
    }  # fmt: skip
    logits = world.run(nodes=(1,), before=whole_logits, **how)
    parts = world.run(nodes=(2,), before=three_rows_at_a_time, **how)
    assert close(logits.losses(), parts.losses())
    assert close(logits.evaluations(), parts.evaluations())
