"""Material for trying things out, made here in seconds: `python -m train.tools.demo_assets DIR`.

A tokenizer, a small Llama that has read some Python source, and as training data questions that
Python's own language reference answers, which is on every machine that can run this. Fine-tuning
turns a base that expects code into one that answers in prose: small, but it learns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from train import versions
from train.errors import USAGE

NEEDED = ("torch", "transformers", "tokenizers")
VOCABULARY = 400
CONTEXT = 256
WORDS = 45
"""Of one answer, about."""
QUESTION = "### Question\nWhat does the Python reference say about {name}?\n\n### Answer\n"
WARMUP = 4
TOLD = 100
"""Steps of the base's training between two lines of progress."""
EVERY = 10
"""One sample in so many is for evaluation."""
END = "<|end|>"
SAYS = "<|says|>"
CHAT = (
    "{% for m in messages %}" + SAYS + "{{ m.role }}: {{ m.content }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + SAYS + "assistant: {% endif %}"
)
CONFIG = """\
# A LoRA fine-tuning that three CPU processes finish in about a minute.
model:
  name_or_path: {folder}/model
lora: {{r: 16, alpha: 32}}
data:
  dataset_path: {folder}/train.jsonl
  eval_dataset_path: {folder}/eval.jsonl
  seq_len: 256
batch:
  per_device_train_batch_size: 4
  global_batch_size: 24
optimization:
  learning_rate: 2e-2
  warmup_steps: {warmup}
  max_steps: {steps}
checkpoint:
  output_dir: {folder}/output
  save_steps: 10
evaluation:
  eval_steps: 10
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the material in a folder."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.demo_assets", description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="where to make it: below the current folder, of which the nodes get a copy, or in a "
        "folder that they share",
    )
    parser.add_argument("--steps", type=int, default=50, help="max_steps of the configuration")
    parser.add_argument(
        "--pretrain", type=int, default=800, help="steps of the base's own training"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:  # before anything is written
        print(f"error: not installed here: {', '.join(missing)}", file=sys.stderr)
        hint = versions.install(**dict.fromkeys(missing, ""))
        print(f"hint: {hint}", file=sys.stderr)
        return USAGE
    began = time.perf_counter()
    print(f"{options.folder}: making a small model and data", file=sys.stderr)
    make(options.folder, steps=options.steps, pretrain=options.pretrain, seed=options.seed)
    print(f"{options.folder}: model, train.jsonl, eval.jsonl, config.yaml", end=" ")
    print(f"({time.perf_counter() - began:.1f} s)")
    return 0


def make(folder: Path, *, steps: int = 50, pretrain: int = 800, seed: int = 0) -> None:
    """Remake model, data and configuration; the base is trained on code for `pretrain` steps."""
    folder.mkdir(parents=True, exist_ok=True)
    prose = list(_samples())
    rest = [text for number, text in enumerate(prose) if number % EVERY]
    for name, texts in (("eval", prose[::EVERY]), ("train", rest)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    _make_model(folder / "model", prose, pretrain, seed)
    # What is below the current folder is mirrored to the nodes and stays relative; the dot in
    # front tells it from a hub id.
    elsewhere = folder.is_absolute() or ".." in folder.parts
    seen = str(folder.resolve()) if elsewhere else f"./{folder}"
    text = CONFIG.format(folder=seen, steps=steps, warmup=min(WARMUP, steps))
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def _samples() -> Iterator[str]:
    """Yield questions with stretches of the language reference as answers."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        words = topics[name].split()
        for start in range(0, len(words), WORDS):
            answer = " ".join(words[start : start + WORDS])
            yield f"{QUESTION.format(name=name)}{answer}\n"


def _make_model(folder: Path, prose: list[str], pretrain: int, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    files = sorted(Path(os.__file__).parent.glob("[a-f]*.py"))  # of the standard library
    code = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    tokenizer = make_tokenizer([*prose, *(code[i : i + 2000] for i in range(0, 600_000, 2000))])
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    )
    if pretrain:
        _pretrain(model, tokenizer(code[:900_000])["input_ids"], pretrain)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # the nodes may read it as another user
    tokenizer.save_pretrained(folder)


def make_tokenizer(texts: list[str]) -> Any:
    """Return a tokenizer with a chat template, trained on texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, SAYS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[SAYS],
        chat_template=CHAT,
        model_max_length=1 << 30,
    )


def _pretrain(model: Any, ids: list[int], steps: int) -> None:
    """Have the base read code for some seconds: adapters need something to adapt."""
    import torch

    tokens, threads = torch.tensor(ids), torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small gain nothing from more
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    rows, width = 8, 128
    for step in range(steps):
        if step and not step % TOLD:
            print(f"base model: step {step} of {steps}", file=sys.stderr)
        starts = torch.randint(len(tokens) - width, (rows,))
        batch = torch.stack([tokens[start : start + width] for start in starts.tolist()])
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
