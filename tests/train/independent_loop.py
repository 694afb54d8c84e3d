"""A second way to the numbers of a training: one sample a forward pass, and nothing of train/.

It is written with torch, transformers and peft only, as plainly as can be: no padding, no packing,
no micro-batches, no ranks. The mask of a chat is built from its parts, not found in its text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.lazy_torch import torch

BEGIN, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ '' if loop.first else '\n' }}"
    f"{{{{ '{BEGIN}' + m.role + '\n' + m.content + '{END}' }}}}{{% endfor %}}"
    f"{{{{ '\n{BEGIN}assistant\n' if add_generation_prompt }}}}"
)
"""ChatML, but for the newline after the last message, of which nobody needs to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Token ids, and for each whether the loss counts it."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]
    images: dict[str, Any] = field(default_factory=dict)
    """What a model takes of a sample's images, by its own names."""

    @property
    def count(self) -> int:
        """How many tokens the loss counts; none predicts the first one."""
        return sum(self.learned[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a training does with its samples."""

    learning_rate: float
    warm_up: int
    clip: float
    weight_decay: float
    evaluate_every: int
    """Steps; also before the first and after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a training was, step by step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    learned: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    evaluations: dict[int, float] = field(default_factory=dict)


def make_tokenizer(texts: Iterable[str], size: int) -> Any:
    """Return a tokenizer with the template, trained on texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<eos>", BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", chat_template=TEMPLATE
    )


def samples(path: Path, tokenizer: Any) -> list[Sample]:
    """Tokenize a file of chats part by part: an answer and its end are learned, nothing else."""
    found = []
    for line in path.read_text().splitlines():
        ids: list[int] = []
        learned: list[bool] = []
        for number, message in enumerate(json.loads(line)["messages"]):
            answers = message["role"] == "assistant"
            for text, counts in (
                ("\n" if number else "", False),
                (BEGIN, False),
                (message["role"] + "\n", False),
                (message["content"], answers),
                (END, answers),
            ):
                part = tokenizer(text, add_special_tokens=False)["input_ids"]
                ids += part
                learned += [counts] * len(part)
        found.append(Sample(ids=tuple(ids), learned=tuple(learned)))
    return found


def steps(
    rows: Sequence[list[Sample]], *, seed: int, epochs: int, batch: int
) -> list[list[Sample]]:
    """Return the samples of each step: an epoch's order is that of its own shuffle."""
    found = []
    for epoch in range(epochs):
        order = np.arange(len(rows))
        np.random.default_rng([seed, epoch, 0]).shuffle(order)
        chosen = [order[at : at + batch] for at in range(0, len(order), batch)]
        found += [[sample for row in each for sample in rows[row]] for each in chosen]
    return found


def train(model: Any, taken: list[list[Sample]], held_out: list[Sample], recipe: Recipe) -> Numbers:
    """Train a model in place, and return the numbers."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(groups(model, recipe.weight_decay))
    found = Numbers()
    found.evaluations[0] = evaluate(model, held_out)
    for number, batch in enumerate(taken, 1):
        learned = sum(sample.count for sample in batch)
        model.train()
        loss = 0.0
        for sample in batch:
            total = cross_entropy(model, sample)
            (total / learned).backward()
            loss += float(total.detach())
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
        rate = learning_rate(recipe, number, len(taken))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        found.losses.append(loss / learned)
        found.norms.append(float(norm))
        found.rates.append(rate)
        found.learned.append(learned)
        found.tokens.append(sum(len(sample.ids) for sample in batch))
        if number % recipe.evaluate_every == 0 or number == len(taken):
            found.evaluations[number] = evaluate(model, held_out)
    return found


def evaluate(model: Any, held_out: list[Sample]) -> float:
    """Return the mean loss of a learned token."""
    model.eval()
    with torch.no_grad():
        total = sum(float(cross_entropy(model, sample)) for sample in held_out)
    return total / sum(sample.count for sample in held_out)


def cross_entropy(model: Any, sample: Sample) -> Any:
    """Return the sum over the learned tokens of a sample: the model sees this sample only."""
    ids = torch.tensor([sample.ids])
    logits = model(input_ids=ids, use_cache=False, **sample.images).logits[0, :-1]
    counts = torch.tensor(sample.learned[1:])
    return torch.nn.functional.cross_entropy(
        logits[counts].float(), ids[0, 1:][counts], reduction="sum"
    )


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the rate of a step, counted from 1: it rises in a line, then falls as a cosine."""
    if step <= recipe.warm_up:
        return recipe.learning_rate * step / recipe.warm_up
    gone = (step - 1 - recipe.warm_up) / (steps - recipe.warm_up)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * gone))


def groups(model: Any, decay: float) -> list[dict[str, Any]]:
    """Return the optimizer's groups as transformers' Trainer makes them."""
    from transformers import Trainer

    decays = set(Trainer.get_decay_parameter_names(None, model))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {
            "params": [p for name, p in trained if (name in decays) is wanted],
            "weight_decay": decay if wanted else 0.0,
        }
        for wanted in (True, False)
    ]
