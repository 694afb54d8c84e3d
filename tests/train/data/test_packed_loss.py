"""Packed samples do not see each other: their loss is that of the samples by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.train.world import Training, World
from train.data.collate import Batch, collate
from train.data.encoding import IGNORED
from train.data.token_store import Ints

if TYPE_CHECKING:
    from torch.nn import Module

pytestmark = pytest.mark.torch


class Samples:
    """Random samples."""

    def __init__(self, lengths: list[int]) -> None:
        rng = np.random.default_rng(0)
        self._ids = [rng.integers(1, 300, length) for length in lengths]

    def sample(self, number: int) -> tuple[Ints, Ints]:
        ids = self._ids[number]
        return ids, np.where(np.arange(len(ids)) % 5 == 4, IGNORED, ids)


def loss(model: Module, batch: Batch) -> float:
    import torch

    positions = {}
    if batch.position_ids is not None:
        positions["position_ids"] = torch.from_numpy(batch.position_ids)
    with torch.no_grad():
        logits = model(
            input_ids=torch.from_numpy(batch.input_ids), use_cache=False, **positions
        ).logits
    wanted = torch.from_numpy(batch.labels)[:, 1:].flatten()
    each = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).double(), wanted, reduction="sum", ignore_index=IGNORED
    )
    return float(each)


@pytest.mark.parametrize("rows", [[[0, 1, 2]], [[0, 1], [2, 3], [4]]])
def test_packed_rows_have_the_loss_of_their_samples(tiny: Path, rows: list[list[int]]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny / "model", attn_implementation="sdpa")
    samples = Samples([7, 11, 5, 13, 9])
    packed = collate(samples, [np.asarray(row) for row in rows], packed=True)  # type: ignore[arg-type]
    alone = [
        collate(samples, [np.asarray([number])], packed=False)  # type: ignore[arg-type]
        for row in rows
        for number in row
    ]
    assert packed.valid == sum(batch.valid for batch in alone)
    assert loss(model, packed) == pytest.approx(sum(loss(model, one) for one in alone), abs=1e-3)


@pytest.mark.parametrize("batching", ["packed", pytest.param("plain", marks=pytest.mark.soak)])
def test_every_batching_is_the_same_on_any_number_of_ranks(world: World, batching: str) -> None:
    how: dict[str, Any] = {"batching": batching, "max_steps": 3}
    one = world.run(**how).losses()
    three = world.run(nodes=(2, 1), **how).losses()
    assert three == pytest.approx(one, rel=1e-5)


def test_nodes_train_on_samples_of_their_own(world: World) -> None:
    how: dict[str, Any] = {"max_steps": None, "num_train_epochs": 1}
    whole = world.run(**how)
    strided = world.run(node_data="strided", nodes=(1, 1), **how)
    assert tokens(strided) == tokens(whole)
    counts = [line for line in whole.said().splitlines() if line.startswith("Data: ")]
    assert counts
    assert counts == [line for line in strided.said().splitlines() if line.startswith("Data: ")]
    assert all(np.isfinite(list(strided.losses().values())))


def tokens(training: Training) -> int:
    """Return all tokens that a training has seen."""
    lines = (training.output / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line).get("tokens", 0) for line in lines)
