"""DPO and ORPO have the numbers of the papers' formulas and of TRL, and resume bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train import preference_loop as loop
from tests.train.outcome import weights
from tests.train.world import Training, World, without_workers

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
]
FSDP: dict[str, Any] = {"nodes": (2,), "parallel": "fsdp"}
DDP: dict[str, Any] = {"nodes": (2,), "parallel": "ddp"}
RATE = 5e-3
COUNT, STEPS = 7, 4
TRL = json.loads(Path(__file__).with_name("trl_numbers.json").read_text())
"""Of the same pairs and the same adapter; trl_numbers.py writes them."""
NAMES = ("loss", "rewards/accuracies", "rewards/chosen", "rewards/rejected")


class Task:
    """A model and pairs of answers; each step has all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.tokenizer = loop.make_model(self.base)
        rows = loop.write_pairs(folder / "pairs.jsonl", COUNT, 1)
        self.pairs = [loop.texts(row, self.tokenizer) for row in rows]
        held_out = loop.write_pairs(folder / "held-out.jsonl", 3, 2)
        self.held_out = [loop.texts(row, self.tokenizer) for row in held_out]

    def run(self, world: World, objective: str, **how: Any) -> Training:
        """Train as a user does; two places of four stay empty in each step's last micro-batch."""
        return world.run(
            **{
                "name_or_path": str(self.base),
                "dataset_path": str(self.folder / "pairs.jsonl"),
                "eval_dataset_path": str(self.folder / "held-out.jsonl"),
                "cache_dir": str(self.folder / "tokens"),
                "objective": objective,
                "seq_len": 128,
                "global_batch_size": COUNT,
                "per_device_train_batch_size": 2,
                "learning_rate": RATE,
                "lr_scheduler_type": "constant",
                "warmup_steps": 0,
                "max_steps": STEPS,
            }
            | how
        )

    def model(self, adapter: Path | None = None) -> Any:
        """Return the base, or the base with an adapter to train."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(self.base)
        return PeftModel.from_pretrained(base, adapter, is_trainable=True) if adapter else base


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Return a task in this test's folder."""
    return Task(tmp_path)


def numbers(run: Training, kind: str = "step") -> list[list[float]]:
    """Return of each step the loss, the share won, and both rewards."""
    rows = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    before = "" if kind == "step" else "eval_"
    return [[row[before + name] for name in NAMES] for row in rows if row["kind"] == kind]


def are_close(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> None:
    """Compare numbers of steps."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=0)


def test_dpo(world: World, task: Task) -> None:
    # Every training begins with the same adapter: a step at the rate 0 writes it.
    start = task.run(world, "dpo", learning_rate=0.0, max_steps=1)
    model = task.model(start.output / "adapter")
    wanted = loop.train(model, [task.pairs] * STEPS, RATE, beta=0.2, smoothing=0.0)
    assert wanted[0][0] == pytest.approx(0.6931472), "it begins as its own reference"
    are_close(wanted, TRL["dpo"])

    run = task.run(world, "dpo", save_steps=2, beta=0.2, **FSDP)
    are_close(numbers(run), wanted)
    after = loop.train(model, [task.held_out], 0.0, beta=0.2, smoothing=0.0)
    are_close(numbers(run, "eval"), after)
    assert "won) | Norm" in run.said()

    checkpoint = str(run.output / "step-000002")
    again = task.run(world, "dpo", resume_from_checkpoint=checkpoint, beta=0.2, **FSDP)
    assert numbers(again) == numbers(run)[2:]
    assert weights(again) == weights(run)


def test_orpo_of_all_weights(world: World, task: Task) -> None:
    wanted = loop.train(task.model(), [task.pairs] * STEPS, RATE, beta=0.2)
    # TRL's own loss counts the prompt too.
    (first,) = TRL["orpo"]
    first[0] = -first[2] / 0.2 - 0.2 * TRL["log_odds_ratio"]
    are_close(wanted[:1], [first])
    run = task.run(world, "orpo", method="full", beta=0.2, **DDP)
    are_close(numbers(run), wanted)
    how = DDP | {"stream": True, "before": without_workers}
    assert numbers(task.run(world, "orpo", method="full", beta=0.2, **how)) == numbers(run)


def test_a_share_of_pairs_may_be_the_wrong_way_round() -> None:
    from train.model.preference import dpo

    policy, reference = torch.tensor([[-3.0, -5.0]]), torch.tensor([[-4.0, -4.0]])
    right, wrong = math.log(1 + math.exp(-0.5 * 2)), math.log(1 + math.exp(0.5 * 2))
    (loss,), ((chosen, rejected),) = dpo(policy, reference, 0.5, 0.2)
    assert float(loss) == pytest.approx(0.8 * right + 0.2 * wrong)
    assert (float(chosen), float(rejected)) == (0.5, -0.5)


@pytest.mark.soak
@pytest.mark.parametrize("layout", [{}, DDP, {"activation_checkpointing": True, **FSDP}])
def test_every_layout(world: World, task: Task, layout: dict[str, Any]) -> None:
    start = task.run(world, "dpo", learning_rate=0.0, max_steps=1)
    model = task.model(start.output / "adapter")
    wanted = loop.train(model, [task.pairs] * STEPS, RATE, beta=0.1, smoothing=0.0)
    are_close(numbers(task.run(world, "dpo", **layout)), wanted)
    wanted = loop.train(task.model(start.output / "adapter"), [task.pairs] * STEPS, RATE, beta=0.1)
    are_close(numbers(task.run(world, "orpo", **layout)), wanted)


@pytest.mark.parametrize(
    "how",
    [
        {"lora_use_dora": True, "lora_rank_pattern": {"down_proj": 2}},
        {"lora_modules_to_save": ("lm_head", "embed_tokens")},
    ],
)
def test_the_reference_is_the_base_whatever_is_trained_next_to_it(
    task: Task, how: dict[str, Any]
) -> None:
    from train.config.config import Config
    from train.model.load import with_adapters
    from train.model.model import Model

    config = Config(name_or_path=str(task.base), dataset_path="-", objective="dpo", **how)
    network = with_adapters(config, task.model())
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape)
    ids = torch.arange(1, 13).view(2, 6)
    sums = []
    for model in (network.eval(), task.model().eval()):
        with torch.no_grad():
            logs = model(ids).logits[:, :-1].log_softmax(-1)
        sums.append(logs.gather(2, ids[:, 1:, None]).sum((1, 2)))
    model = Model(network, network, "single", None, torch.float32, (), config=config)  # type: ignore[arg-type]
    model.try_head()
    found = model.loss(ids, ids, None)
    assert found.rewards is not None
    assert torch.allclose(found.rewards.float(), config.beta * (sums[0] - sums[1]), atol=1e-5)
    found.total.backward()  # type: ignore[no-untyped-call]
