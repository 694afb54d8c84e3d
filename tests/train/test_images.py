"""Models that see images: their trainings' numbers are those of a plain loop of transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lazy_torch import torch
from tests.train import independent_loop as loop
from tests.train.seeing import TOKENS, make_chats, make_seeing
from tests.train.world import Training, World, without_workers
from train.data import images

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
]

SEED, BATCH, COUNT = 42, 6, 10
RECIPE = loop.Recipe(learning_rate=3e-3, warm_up=1, clip=1.5, weight_decay=0.0, evaluate_every=100)
HOW: dict[str, Any] = {
    "seq_len": 256, "seed": SEED, "num_train_epochs": 2, "max_steps": None,
    "learning_rate": RECIPE.learning_rate, "warmup_steps": RECIPE.warm_up,
    "max_grad_norm": RECIPE.clip, "global_batch_size": BATCH,
}  # fmt: skip
FSDP: dict[str, Any] = {"nodes": (2,), "parallel": "fsdp", "per_device_train_batch_size": 1}
DDP: dict[str, Any] = {"nodes": (2,), "parallel": "ddp", "per_device_train_batch_size": 2}
ALONE: dict[str, Any] = {"per_device_train_batch_size": 3}
SEES: dict[str, Any] = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model that sees, and chats about images."""

    base: Path
    chats: Path
    cache: Path

    def run(self, world: World, **how: Any) -> Training:
        """Train as a user does."""
        paths = {"name_or_path": self.base, "dataset_path": self.chats, "cache_dir": self.cache}
        named = {key: str(path) for key, path in paths.items()}
        return world.run(**HOW | {"eval_dataset_path": str(self.chats)} | named | how)

    def model(self, folder: Path | None = None) -> Any:
        """Return the base, or what was exported."""
        from transformers import AutoModelForImageTextToText

        return AutoModelForImageTextToText.from_pretrained(
            folder or self.base, attn_implementation="eager"
        )

    def samples(self) -> list[loop.Sample]:
        """Have the processor itself make the samples: answers and their ends are learned."""
        from PIL import Image

        processor = images.load(self.base, trust_remote_code=False)
        tokenizer = processor.tokenizer
        begin = tokenizer("<|im_start|>assistant\n")["input_ids"]
        (end,) = tokenizer("<|im_end|>")["input_ids"]
        found = []
        for line in self.chats.read_text().splitlines():
            chat = json.loads(line)["messages"]
            for message in chat:
                if isinstance(message["content"], str):
                    message["content"] = [{"type": "text", "text": message["content"]}]
            parts = [part for message in chat for part in message["content"]]
            shown = [
                Image.open(self.chats.parent / part["path"]).convert("RGB")
                for part in parts
                if part["type"] == "image"
            ]
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            made = processor(text=[text], images=shown or None)
            (ids,) = (list(row) for row in made.pop("input_ids"))
            learned, within = [], False
            for at, token in enumerate(ids):
                within = within or ids[max(0, at - len(begin)) : at] == begin
                learned.append(within)
                within = within and token != end
            made.pop("attention_mask")
            seen = made.convert_to_tensors("pt")
            found.append(loop.Sample(ids=tuple(ids), learned=tuple(learned), images=dict(seen)))
        return found

    def wanted(self, model: Any) -> loop.Numbers:
        """Train a model in a plain loop."""
        samples = self.samples()
        rows = [[sample] for sample in samples]
        taken = loop.steps(rows, seed=SEED, epochs=2, batch=BATCH)
        return loop.train(model, taken, samples, RECIPE)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return chats with no image, one and two."""
    return make_chats(tmp_path_factory.mktemp("chats"), COUNT)


@pytest.fixture
def task(request: pytest.FixtureRequest, tmp_path: Path, chats: Path) -> Task:
    """Return a family's model."""
    base = make_seeing(tmp_path / "base", request.param)
    return Task(base=base, chats=chats, cache=tmp_path / "tokens")


def has_numbers(run: Training, wanted: loop.Numbers) -> None:
    """Compare every step, and the last evaluation."""
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["tokens_valid"] for line in steps] == wanted.learned
    assert [line["tokens"] for line in steps] == wanted.tokens
    assert [line["loss"] for line in steps] == pytest.approx(wanted.losses, abs=1e-5, rel=0)
    assert [line["grad_norm"] for line in steps] == pytest.approx(wanted.norms, rel=1e-4)
    last = len(wanted.losses)
    assert run.evaluations()[last] == pytest.approx(wanted.evaluations[last], abs=1e-5)


def families(*quick: str) -> pytest.MarkDecorator:
    """Return all families as parameters of `task`, those of `make test` first."""
    others = [pytest.param(n, marks=pytest.mark.soak) for n in TOKENS if n not in quick]
    return pytest.mark.parametrize("task", [*quick, *others], indirect=True)


@families("llava")
def test_adapters_are_on_the_language_model(world: World, task: Task) -> None:
    from peft import PeftModel

    # Both begin with the same adapter: a step at the rate 0 writes it.
    nothing = {"learning_rate": 0.0, "max_steps": 1, "warmup_steps": 0}
    start = task.run(world, **ALONE | nothing)
    shape = json.loads((start.output / "adapter/adapter_config.json").read_text())
    model = PeftModel.from_pretrained(task.model(), start.output / "adapter", is_trainable=True)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names
    assert all("language_model" in name or "text_model" in name for name in names), shape
    wanted = task.wanted(model)
    assert wanted.losses[-1] < wanted.losses[0] - 0.05, "it learns"
    run = task.run(world, **FSDP)
    has_numbers(run, wanted)
    trained = PeftModel.from_pretrained(task.model(), run.output / "adapter")
    sample = task.samples()[0]
    ids = torch.tensor([sample.ids])
    with torch.no_grad():
        one, other = (m.eval()(input_ids=ids, **sample.images).logits for m in (model, trained))
    assert float((one - other).abs().max()) < 1e-4
    assert (run.output / "adapter/preprocessor_config.json").exists() or (
        run.output / "adapter/processor_config.json"
    ).exists()


@families("qwen2_5_vl")
def test_all_weights_of_the_language_model(world: World, task: Task) -> None:
    model = task.model()
    frozen = [n for n, _ in model.named_parameters() if not is_text(n)]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    wanted = task.wanted(model)
    run = task.run(world, method="full", **DDP)
    has_numbers(run, wanted)
    how = DDP | {"stream": True, "max_steps": len(run.losses()), "before": without_workers}
    assert task.run(world, method="full", **how).losses() == run.losses()
    exported = task.model(run.output / "model").state_dict()
    before = task.model().state_dict()
    assert all(torch.equal(exported[name], before[name]) for name in frozen)
    moved = [float((exported[n] - p).abs().max()) for n, p in model.state_dict().items()]
    assert max(moved) < 1e-4


def is_text(name: str) -> bool:
    return any(part in name for part in ("language_model", "text_model.", "lm_head"))


@pytest.mark.soak
@families()
def test_the_tower_is_trained_too(world: World, task: Task) -> None:
    model = task.model()
    wanted = task.wanted(model)
    for layout in (ALONE, FSDP, DDP):
        has_numbers(task.run(world, method="full", **SEES, **layout), wanted)
