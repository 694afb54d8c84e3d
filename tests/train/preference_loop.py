"""A second way to the numbers of DPO and ORPO: the papers' formulas, a text a forward pass.

As tests/train/independent_loop.py it uses nothing of train/.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.lazy_torch import torch
from tests.train.independent_loop import BEGIN, END, make_tokenizer

WORDS = ["red", "green", "blue", "round", "square", "heavy", "light", "warm", "cold", "old"]
Text = tuple[list[int], int]
"""Tokens, and where the answer begins."""


def write_pairs(path: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write pairs of answers to a question, and return them."""
    rng = random.Random(seed)
    rows = [
        {
            "prompt": " ".join(rng.choices(WORDS, k=rng.randint(2, 9))),
            "chosen": " ".join(rng.choices(WORDS[:6], k=rng.randint(1, 8))),
            "rejected": " ".join(rng.choices(WORDS[4:], k=rng.randint(1, 8))),
        }
        for _ in range(count)
    ]
    path.write_text("".join(f"{json.dumps(as_messages(row))}\n" for row in rows))
    return rows


def as_messages(row: dict[str, str]) -> dict[str, Any]:
    """Return a pair as TRL has it in messages."""
    return {
        key: [{"role": "user" if key == "prompt" else "assistant", "content": row[key]}]
        for key in row
    }


def make_model(folder: Path) -> Any:
    """Write a small Llama with a tokenizer that has a chat template; return the tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(WORDS, 300)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=304,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    ).save_pretrained(folder)
    return tokenizer


def texts(row: dict[str, str], tokenizer: Any) -> list[Text]:
    """Tokenize the chosen and the rejected text part by part."""
    found = []
    for answer in (row["chosen"], row["rejected"]):
        parts = [BEGIN, f"user\n{row['prompt']}", END, "\n", BEGIN, "assistant\n", answer, END]
        ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
        begin = sum(map(len, ids[:6]))
        found.append(([token for part in ids for token in part], begin))
    return found


def log_probabilities(model: Any, text: Text) -> Any:
    """Return the log-probability of each token of the answer."""
    ids, begin = torch.tensor(text[0]), text[1]
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[1:, None])[begin - 1 :, 0]


def dpo(model: Any, pair: list[Text], beta: float, smoothing: float) -> tuple[Any, list[float]]:
    """Return the loss of a pair, and its rewards."""
    policy = [log_probabilities(model, text).sum() for text in pair]
    with torch.no_grad(), model.disable_adapter():
        reference = [log_probabilities(model, text).sum() for text in pair]
    chosen, rejected = (beta * (p - r) for p, r in zip(policy, reference, strict=True))
    right, wrong = torch.sigmoid(chosen - rejected).log(), torch.sigmoid(rejected - chosen).log()
    loss = -right * (1 - smoothing) - wrong * smoothing
    return loss, [float(chosen.detach()), float(rejected.detach())]


def orpo(model: Any, pair: list[Text], beta: float) -> tuple[Any, list[float]]:
    """Return the loss of a pair, and its rewards."""
    chosen, rejected = (log_probabilities(model, text).mean() for text in pair)
    p, q = chosen.exp(), rejected.exp()
    ratio = (p / (1 - p)) / (q / (1 - q))
    loss = -chosen - beta * torch.sigmoid(ratio.log()).log()
    return loss, [beta * float(chosen.detach()), beta * float(rejected.detach())]


def train(
    model: Any, steps: list[list[list[Text]]], learning_rate: float, **how: float
) -> list[list[float]]:
    """Train a model in place; return of each step the loss, the share won and both rewards."""
    loss_of = dpo if "smoothing" in how else orpo
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    found = []
    for step in steps:
        rows = []
        for pair in step:
            loss, (chosen, rejected) = loss_of(model, pair, **how)
            (loss / len(step)).backward()
            rows.append([float(loss.detach()), float(chosen > rejected), chosen, rejected])
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append([sum(column) / len(step) for column in zip(*rows, strict=True)])
    return found
