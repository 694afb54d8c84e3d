"""A training's numbers are those of a plain loop that sees one sample a forward pass."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lazy_torch import torch
from tests.train import independent_loop as loop
from tests.train.families import EAGER, FAMILIES, LEAKS, make_family
from tests.train.tiny import VOCABULARY
from tests.train.world import Training, World
from train.data.packing import pack

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),  # peft sets it itself
]

ROUNDS = "qwen3_next"
"""Padding changes its gradient's norm by 5e-7, other families' by 6e-9: after 21 steps losses have
been 1e-3 apart."""
SEED = 42
EPOCHS = 3
SEQ_LEN = 160
SOME, ALL = 21, 50
"""Chats in `make test`, which are nine steps, and in `make soak`."""
BATCH = {False: 8, True: 4}
"""Samples of a step, and packed rows of one; the last step of an epoch has fewer."""
RECIPE = loop.Recipe(learning_rate=2e-3, warm_up=3, clip=1.5, weight_decay=0.0, evaluate_every=7)
HOW: dict[str, Any] = {
    "seq_len": SEQ_LEN, "seed": SEED, "num_train_epochs": EPOCHS, "max_steps": None,
    "learning_rate": RECIPE.learning_rate, "warmup_steps": RECIPE.warm_up,
    "max_grad_norm": RECIPE.clip, "eval_steps": RECIPE.evaluate_every,
}  # fmt: skip
FSDP: dict[str, Any] = {"nodes": (2,), "parallel": "fsdp"}
DDP: dict[str, Any] = {"nodes": (2,), "parallel": "ddp"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "1 micro-batch": {"batching": "plain", "per_device_train_batch_size": 8},
    "2 micro-batches": {"batching": "plain", "per_device_train_batch_size": 4},
    "4 balanced": {"per_device_train_batch_size": 2},
    "4 on 2 ranks": {**DDP, "per_device_train_batch_size": 1},
    "4 empty places": {**FSDP, "per_device_train_batch_size": 3},
}
PACKED: dict[str, dict[str, Any]] = {
    "2 micro-batches": {"per_device_train_batch_size": 2},
    "2 ranks": {**FSDP, "per_device_train_batch_size": 1},
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "1 rank": {"per_device_train_batch_size": 2},
    "2 ranks": {**FSDP, "per_device_train_batch_size": 2},
}

OPTIONS: dict[str, dict[str, Any]] = {
    "rsLoRA": {"lora_use_rslora": True},
    "DoRA": {"lora_use_dora": True},
    "modules_to_save": {"lora_modules_to_save": ("embed_tokens", "lm_head", "norm")},
    "patterns": {
        "lora_rank_pattern": {"down_proj": 4, "0.self_attn.q_proj": 8},
        "lora_alpha_pattern": {"down_proj": 12},
    },
}


def sentences(count: int, seed: int) -> list[str]:
    """Return sentences of made-up words, which do not depend on Python's version."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choice("bdfklmnprst") + rng.choice("aeiou") for _ in "ab") for _ in "x" * 80
    ]
    return [" ".join(rng.choices(words, k=rng.randint(1, 7))) for _ in range(count)]


def write_chats(path: Path, count: int, seed: int) -> Path:
    """Write chats of one question or two, some after a system message."""
    texts = iter(sentences(5 * count, seed))
    lines = []
    for number in range(count):
        chat = [{"role": "system", "content": next(texts)}] if number % 5 == 0 else []
        for _ in range(1 + number % 2):
            chat += [{"role": role, "content": next(texts)} for role in ("user", "assistant")]
        lines.append(json.dumps({"messages": chat}))
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and the data that it is trained on, here and there."""

    name: str
    folder: Path
    base: Path
    samples: list[loop.Sample]
    held_out: list[loop.Sample]

    def run(self, world: World, *, packed: bool = False, **how: Any) -> Training:
        """Train as a user does."""
        return world.run(
            **HOW
            | {
                "global_batch_size": BATCH[packed],
                "batching": "packed" if packed else "balanced",
                "name_or_path": str(self.base),
                "dataset_path": str(self.folder / "chats.jsonl"),
                "eval_dataset_path": str(self.folder / "held-out.jsonl"),
                "cache_dir": str(self.folder / "tokens"),
                "attn_implementation": "eager" if self.name in EAGER else "sdpa",
            }
            | how
        )

    def steps(self, *, packed: bool = False) -> list[list[loop.Sample]]:
        """Return the samples of each step, by the loop's own order."""
        rows = [[sample] for sample in self.samples]
        if packed:
            lengths = np.array([len(sample.ids) for sample in self.samples])
            chosen = list(pack(lengths, SEQ_LEN, np.random.default_rng([SEED, 0])))
            assert sorted(np.concatenate(chosen)) == list(range(len(lengths)))
            assert max(lengths[row].sum() for row in chosen) <= SEQ_LEN
            assert len(chosen) < len(lengths) / 2, "rows hold several samples"
            rows = [[self.samples[number] for number in row] for row in chosen]
        return loop.steps(rows, seed=SEED, epochs=EPOCHS, batch=BATCH[packed])

    def model(self, folder: Path | None = None) -> Any:
        """Return the base or what was exported, with the plainest attention."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            folder or self.base, attn_implementation="eager"
        )

    def logits(self, model: Any) -> Any:
        """Return what a model says to the samples held out."""
        model.eval()
        with torch.no_grad():
            found = [
                model(input_ids=torch.tensor([sample.ids]), use_cache=False).logits[0]
                for sample in self.held_out
            ]
        return torch.cat(found)

    def greedy(self, model: Any) -> list[list[int]]:
        """Return how a model goes on after the beginnings of the samples held out."""
        model.eval()
        how = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
        return [
            model.generate(input_ids=torch.tensor([sample.ids[:9]]), **how)[0].tolist()
            for sample in self.held_out[:4]
        ]


@pytest.fixture
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    """Return a family's model, and chats."""
    name, count = request.param
    folder = tmp_path / "task"
    folder.mkdir()
    tokenizer = loop.make_tokenizer(sentences(300, 0), VOCABULARY)
    tokenizer.save_pretrained(folder / "tokenizer")
    base = make_family(folder / "base", name, folder / "tokenizer")
    tokenizer.save_pretrained(base)
    # With these seeds no expert of GLM-4-MoE is chosen by less than 1e-5: rounding routes no token.
    chats, held_out = (
        loop.samples(write_chats(folder / f"{file}.jsonl", lines, seed), tokenizer)
        for file, lines, seed in (("chats", count, 110), ("held-out", 9, 111))
    )
    assert max(len(sample.ids) for sample in chats) <= SEQ_LEN
    return Task(name=name, folder=folder, base=base, samples=chats, held_out=held_out)


def cases(
    every: dict[str, dict[str, Any]], *, but: Collection[str] = (), **quick: tuple[str, ...]
) -> pytest.MarkDecorator:
    """Return families as parameters of `task`, each with its layouts.

    Args:
        every: The layouts, for all families in `make soak`.
        but: Families that are left out.
        quick: Families of `make test`, and their layouts.
    """
    chosen = [
        pytest.param((name, SOME), {one: every[one] for one in few}, id=name)
        for name, few in quick.items()
    ]
    chosen += [
        pytest.param((name, ALL), every, id=f"{name}, every layout", marks=pytest.mark.soak)
        for name in FAMILIES
        if name not in {*but, ROUNDS}
    ]
    return pytest.mark.parametrize(("task", "layouts"), chosen, indirect=["task"])


def has_numbers(run: Training, wanted: loop.Numbers, *, after: int = 0) -> None:
    """Compare every step of a training, or those after a checkpoint, with the loop's."""
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    took = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in took] == list(range(after + 1, len(wanted.losses) + 1))
    for key, numbers, within in (
        ("tokens_valid", wanted.learned, {"abs": 0, "rel": 0}),
        ("tokens", wanted.tokens, {"abs": 0, "rel": 0}),
        ("lr", wanted.rates, {"abs": 1e-12, "rel": 0}),
        ("loss", wanted.losses, {"abs": 1e-5, "rel": 0}),
        ("grad_norm", wanted.norms, {"abs": 0, "rel": 1e-5}),
    ):
        assert [line[key] for line in took] == pytest.approx(numbers[after:], **within), key
    evaluated = {
        step: loss for step, loss in wanted.evaluations.items() if step > after or not after
    }
    assert run.evaluations() == pytest.approx(evaluated, abs=1e-5, rel=0)


def say_the_same(one: Any, other: Any) -> None:
    """Compare logits, after rounding went its own way through 21 steps."""
    assert float((one - other).abs().max()) < 1e-4


@cases(LAYOUTS, glm4_moe=("4 empty places",))
def test_all_weights(world: World, task: Task, layouts: dict[str, dict[str, Any]]) -> None:
    model = task.model()
    before = task.logits(model)
    wanted = loop.train(model, task.steps(), task.held_out, RECIPE)
    after = task.logits(model)
    last = len(wanted.losses)
    assert last == EPOCHS * -(-len(task.samples) // BATCH[False])
    assert min(wanted.norms) < RECIPE.clip < max(wanted.norms), "some steps are clipped"
    assert wanted.evaluations[last] < wanted.evaluations[0] - 0.1, "it learns"
    assert float((after - before).abs().max()) > 0.1
    for layout in layouts.values():
        run = task.run(world, method="full", **layout)
        has_numbers(run, wanted)
        say_the_same(task.logits(task.model(run.output / "model")), after)


@cases(PACKED, but=LEAKS, qwen3=("2 ranks",))
def test_packed_rows(world: World, task: Task, layouts: dict[str, dict[str, Any]]) -> None:
    model = task.model()
    wanted = loop.train(model, task.steps(packed=True), task.held_out, RECIPE)
    after = task.logits(model)
    for layout in layouts.values():
        run = task.run(world, method="full", packed=True, **layout)
        has_numbers(run, wanted)
        say_the_same(task.logits(task.model(run.output / "model")), after)


@cases(LAYOUTS)
def test_weight_decay_spares_norms_and_biases(
    world: World, task: Task, layouts: dict[str, dict[str, Any]]
) -> None:
    recipe = replace(RECIPE, weight_decay=0.1)
    wanted = loop.train(task.model(), task.steps(), task.held_out, recipe)
    for layout in layouts.values():
        run = task.run(world, method="full", weight_decay=recipe.weight_decay, **layout)
        has_numbers(run, wanted)


@cases({"2 ranks": ADAPTERS["2 ranks"]})  # test_trainer.py has it for one family
def test_a_resume_on_more_ranks(
    world: World, task: Task, layouts: dict[str, dict[str, Any]]
) -> None:
    wanted = loop.train(task.model(), task.steps(), task.held_out, RECIPE)
    whole = task.run(world, method="full", per_device_train_batch_size=8, save_steps=11)
    has_numbers(whole, wanted)
    checkpoint = str(whole.output / "step-000011")
    for layout in layouts.values():
        again = task.run(world, method="full", resume_from_checkpoint=checkpoint, **layout)
        has_numbers(again, wanted, after=11)
        rest = {step: loss for step, loss in whole.losses().items() if step > 11}
        assert again.losses() == pytest.approx(rest, abs=1e-6, rel=0)


@cases(ADAPTERS)  # below, one that is trained further; test_architectures.py has PEFT read one
def test_adapters(world: World, task: Task, layouts: dict[str, dict[str, Any]]) -> None:
    train_adapters(world, task, layouts, packed=False)


@pytest.mark.parametrize("task", [("qwen3", ALL)], indirect=True)
@pytest.mark.parametrize(
    ("options", "layout"),
    [
        pytest.param(name, layout, id=f"{name}, {layout.get('parallel')}", marks=pytest.mark.soak)
        for name in OPTIONS
        for layout in ({}, DDP, FSDP)
    ],
)
def test_options_of_lora(world: World, task: Task, options: str, layout: dict[str, Any]) -> None:
    train_adapters(world, task, {"": layout}, packed=False, options=OPTIONS[options])


@pytest.mark.parametrize("task", [("qwen3", SOME)], indirect=True, ids=["qwen3"])
def test_an_adapter_is_trained_further(world: World, task: Task) -> None:
    """In a new run whose file says nothing of the adapter's shape; with all options at once."""
    from peft import PeftModel

    recipe = replace(RECIPE, learning_rate=1e-3)
    how = {key: value for one in OPTIONS.values() for key, value in one.items()}
    first = task.run(world, lora_r=4, max_steps=2, eval_steps=None, **how)
    model = PeftModel.from_pretrained(task.model(), first.output / "adapter", is_trainable=True)
    taken = task.steps()[:5]
    wanted = loop.train(model, taken, task.held_out, recipe)
    further: dict[str, Any] = {
        "lora_init_from": str(first.output / "adapter"),
        "learning_rate": 1e-3, "max_steps": len(taken),
    }  # fmt: skip
    metadata = first.output / "adapter" / "metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"base": "another"}))
    run = task.run(world, **further, **FSDP)
    assert f"{metadata.parent} was trained on other files of the base than" in run.said()
    has_numbers(run, wanted)
    shape = json.loads((run.output / "adapter" / "adapter_config.json").read_text())
    assert (shape["r"], shape["use_dora"], shape["use_rslora"]) == (4, True, True)


@cases(ADAPTERS, but=LEAKS)
def test_adapters_of_packed_rows(
    world: World, task: Task, layouts: dict[str, dict[str, Any]]
) -> None:
    train_adapters(world, task, layouts, packed=True)


def train_adapters(
    world: World,
    task: Task,
    layouts: dict[str, dict[str, Any]],
    *,
    packed: bool,
    options: dict[str, Any] | None = None,
) -> None:
    """Train adapters here and there, and read the exported ones with PEFT."""
    from peft import PeftModel

    recipe = replace(RECIPE, learning_rate=1e-3 if options else 5e-3, weight_decay=0.1)
    how: dict[str, Any] = {"lora_r": 16, "weight_decay": recipe.weight_decay, **(options or {})}
    # Both begin with the same adapter: a step at the rate 0 writes it.
    nothing = {"learning_rate": 0.0, "max_steps": 1, "warmup_steps": 0, "eval_steps": None}
    start = task.run(world, **how | nothing)
    how["learning_rate"] = recipe.learning_rate
    model = PeftModel.from_pretrained(task.model(), start.output / "adapter", is_trainable=True)
    wanted = loop.train(model, task.steps(packed=packed), task.held_out, recipe)
    assert wanted.losses[-1] < wanted.losses[0] - 0.1, "it learns"
    after = task.logits(model)
    for layout in layouts.values():
        run = task.run(world, packed=packed, **how | layout)
        has_numbers(run, wanted)
        trained = PeftModel.from_pretrained(task.model(), run.output / "adapter")
        say_the_same(task.logits(trained), after)
        said = task.greedy(trained)
        merged = trained.merge_and_unload()
        say_the_same(task.logits(merged), after)
        assert task.greedy(merged) == said
        assert task.greedy(task.model()) != said
