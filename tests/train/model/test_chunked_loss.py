"""The loss made a few rows at a time is the loss, and so is its gradient."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rows", [0, 1, 37])
@pytest.mark.parametrize("at_a_time", [1, 5, 1000])
def test_a_frozen_heads_loss_is_made_in_parts(
    monkeypatch: pytest.MonkeyPatch, rows: int, at_a_time: int
) -> None:
    import torch
    from torch.nn import functional

    from train.model import chunked_loss

    monkeypatch.setattr(chunked_loss, "LOGITS", 11 * at_a_time)
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 11).requires_grad_(requires_grad=False)
    hidden = torch.randn(2, 40, 6, requires_grad=True)
    kept, wanted = torch.randperm(80)[:rows], torch.randint(11, (rows,))
    logits = functional.linear(hidden.flatten(0, 1)[kept], layer.weight, layer.bias)
    whole = functional.cross_entropy(logits, wanted, reduction="sum")
    (theirs,) = torch.autograd.grad(whole * 3, hidden)

    ours = chunked_loss.Head(layer)
    ours.set(kept, wanted)
    total, _ = ours.sums(layer(hidden))
    (mine,) = torch.autograd.grad(total * 3, hidden)
    assert torch.allclose(total.float(), whole)
    assert torch.allclose(mine, theirs, atol=1e-6)
    with torch.no_grad():
        _, correct = ours.sums(layer(hidden))
    assert int(correct) == int((logits.argmax(-1) == wanted).sum())


def test_a_head_that_learns_is_left_whole() -> None:
    import torch

    from train.model.chunked_loss import Head

    layer = torch.nn.Linear(6, 11)
    chunked_loss = Head(layer)
    assert chunked_loss.whole
    chunked_loss.set(torch.tensor([3]), torch.tensor([2]))
    assert layer(torch.randn(1, 8, 6)).shape == (1, 11)
