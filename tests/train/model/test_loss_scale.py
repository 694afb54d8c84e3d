"""In float16 losses are scaled as torch's GradScaler does, and a resume knows the scale."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train.outcome import weights
from tests.train.world import Training, World

pytestmark = pytest.mark.torch


def test_it_is_that_of_torchs_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.model import loss_scale

    monkeypatch.setattr(loss_scale, "EVERY", 3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    theirs = torch.amp.GradScaler("cpu", growth_interval=3)
    ours = loss_scale.LossScale()
    for finite in (True, True, False, True, True, True, False, False, True, True, True, True):
        weight.grad = torch.full((1,), 1.0 if finite else float("inf"))
        theirs.scale(torch.ones(1))
        theirs.step(optimizer)
        theirs.update()
        ours = ours.after(finite=finite)
        state = theirs.state_dict()
        assert (ours.factor, ours.steady) == (state["scale"], state["_growth_tracker"])
    assert ours.skipped == 3


def begin_too_high(_: int) -> None:
    """Let the first step overflow, and the second one begin with the usual scale."""
    from train.model import loss_scale, optimizer

    real = loss_scale.LossScale.after

    def after(self: Any, *, finite: bool) -> Any:
        return real(self if finite else replace(self, factor=2 * loss_scale.FIRST), finite=finite)

    first = loss_scale.LossScale(factor=2.0**40)
    monkey = pytest.MonkeyPatch()  # (of this rank, which ends with the training)
    monkey.setattr(optimizer, "LossScale", lambda: first)
    monkey.setattr(loss_scale.LossScale, "after", after)


def steps(run: Training) -> list[tuple[Any, ...]]:
    """Return what each step says of itself, in full precision."""
    lines = map(json.loads, (run.output / "metrics.jsonl").read_text().splitlines())
    keys = ("step", "loss", "grad_norm", "loss_scale", "skipped_steps")
    return [tuple(line[key] for key in keys) for line in lines if line["kind"] == "step"]


def test_a_killed_training_resumes_its_scale_bit_for_bit(world: World) -> None:
    """With DoRA, whose magnitudes are trained too; one of two ranks dies, the other notices."""
    how: dict[str, Any] = {
        "dtype": "float16", "lora_use_dora": True, "nodes": (2,), "parallel": "fsdp",
        "save_steps": 2, "max_steps": 5, "before": begin_too_high,
    }  # fmt: skip
    whole = world.run(**how)
    numbers = steps(whole)
    assert [step[3:] for step in numbers] == [(65536.0, 1)] * 5
    assert whole.said().count("(no update)") == 1
    broken = world.start(**how)
    broken.wait_for("Step 3/5")
    broken.send(signal.SIGKILL, 0)
    broken.wait()
    again = world.run(**how, output_dir=str(broken.output), resume_from_checkpoint="latest")
    assert steps(again) == numbers
    assert weights(again) == weights(whole)
    assert not list(again.output.glob("*.tmp-*"))
    exact = world.run(**how | {"dtype": "float32", "before": None, "nodes": (1,)})
    losses = list(exact.losses().values())
    assert numbers[-1][1] == pytest.approx(losses[-1], abs=0.3)
