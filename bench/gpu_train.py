"""LoRA in bfloat16 on one GPU: train/ beside the Trainer and a plain loop, in one run.

Same random Llama, same samples in the same batches, no activation checkpointing, AdamW. Each side
is a process of its own; the first steps are left out. Prints tokens a second, MFU, peak memory and
ratios. `--tiny` is for trying the script on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SIDES = ("train", "trainer", "loop")
WARM = 10
"""Steps left out: compiling kernels, filling caches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--side", choices=["make", *SIDES], help="only this, in --folder")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.side == "make":
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.folder, options)
        return
    if options.side:
        result = {"train": ours, "trainer": trainer, "loop": plain_loop}[options.side](options)
        print(json.dumps(result))
        return
    if not (options.tiny or shutil.which("nvidia-smi")):
        print("no GPU here: nothing to compare (see docs/explanation/training.md)")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own, which leaves nothing on the GPU while the sides are measured.
        run_side("make", folder, options)
        results = {side: measure(side, folder, options) for side in SIDES}
    report(results, options)


def measure(side: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_side(side, folder, options).splitlines()[-1])
    return found


def run_side(side: str, folder: Path, options: argparse.Namespace) -> str:
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    command += ["--steps", str(options.steps), "--batch", str(options.batch)]
    command += ["--seq-len", str(options.seq_len), *(["--tiny"] if options.tiny else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def make(folder: Path, options: argparse.Namespace) -> None:
    """Make the base model (about 1.2 billion weights), a tokenizer and the samples."""
    from pydoc_data.topics import topics

    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    text = " ".join(topics.values())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([text], special)
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.save_pretrained(folder / "model")
    width, layers = (64, 2) if options.tiny else (2048, 16)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=32000, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=max(1, width // 256),
        max_position_embeddings=options.seq_len, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = LlamaForCausalLM(shape)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    ids = fast(text)["input_ids"]
    each = options.seq_len - 16  # decoded and read again it may be some tokens longer
    with (folder / "data.jsonl").open("w", encoding="utf-8") as file:
        for number in range(options.batch * 16):
            start = number * 397 % (len(ids) - each)
            file.write(json.dumps({"text": fast.decode(ids[start : start + each])}) + "\n")


def settings(options: argparse.Namespace, output: Path) -> list[str]:
    """Return the arguments of `python -m train` for the same training as the other sides."""
    keys = {
        "name_or_path": options.folder / "model", "dataset_path": options.folder / "data.jsonl",
        "output_dir": output, "seq_len": options.seq_len, "max_steps": options.steps,
        "per_device_train_batch_size": options.batch, "gradient_accumulation_steps": 1,
        "lora_r": 16, "lora_alpha": 32, "learning_rate": 1e-4, "eval_split": 0,
        "activation_checkpointing": "false", "batching": "plain", "dtype": "bfloat16",
    }  # fmt: skip
    return [f"--set={key}={value}" for key, value in keys.items()]


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """Run `python -m train`; read its own metrics."""
    output = options.folder / "ours"
    command = [sys.executable, "-m", "train", *settings(options, output)]
    done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [r for r in map(json.loads, lines) if r["kind"] == "step"][WARM:]
    peaks = [r["memory"] / 2**30 for r in steps if r.get("memory")]
    mfus = [r["mfu"] for r in steps if r.get("mfu")]
    return {
        "seconds": statistics.median(r["step_s"] for r in steps),
        "tokens": statistics.median(r["tokens"] for r in steps),
        "memory": max(peaks, default=None),
        "mfu": statistics.median(mfus) if mfus else None,
        "loss": steps[-1]["loss"],
    }


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.folder / "model")
    found = []
    for line in (options.folder / "data.jsonl").read_text(encoding="utf-8").splitlines():
        ids = tokenizer(json.loads(line)["text"])["input_ids"]
        ids = (ids + [1] * options.seq_len)[: options.seq_len - 16]
        found.append({"input_ids": ids, "labels": ids})
    return found


def adapted(options: argparse.Namespace) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(options.folder / "model", dtype=torch.bfloat16)
    model.config.use_cache = False
    shape = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, shape)


def measured(options: argparse.Namespace, times: list[float], loss: float) -> dict[str, Any]:
    import torch

    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "seconds": statistics.median(times[WARM:]),
        "tokens": options.batch * (options.seq_len - 16),
        "memory": peak,
        "loss": loss,
    }


def trainer(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - self.began)

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {key: torch.tensor([s[key] for s in samples]) for key in ("input_ids", "labels")}

    arguments = TrainingArguments(
        output_dir=str(options.folder / "hf"), max_steps=options.steps, logging_steps=1,
        per_device_train_batch_size=options.batch, learning_rate=1e-4, save_strategy="no",
        bf16=torch.cuda.is_available(), report_to=[], disable_tqdm=True, optim="adamw_torch_fused",
        lr_scheduler_type="cosine", use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    run = Trainer(
        model=adapted(options), args=arguments, train_dataset=rows(options),
        data_collator=collate, callbacks=[Clock()],
    )  # fmt: skip
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    return measured(options, times, float(losses[-1]))


def plain_loop(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = adapted(options).to(device)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    samples, times, loss = rows(options), [], torch.zeros(())
    for step in range(options.steps):
        began = time.perf_counter()
        chosen = [samples[(step * options.batch + i) % len(samples)] for i in range(options.batch)]
        ids = torch.tensor([s["input_ids"] for s in chosen], device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - began)
    return measured(options, times, loss.item())


def report(results: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if cuda else platform.processor() or "CPU"
    print(f"{device}, torch {torch.__version__}, batch {options.batch} x {options.seq_len} tokens")
    print(f"{'':10}{'s/step':>10}{'tok/s':>10}{'GiB':>8}{'loss':>8}{'time ratio':>12}")
    ours_s = results["train"]["seconds"]
    for side, found in results.items():
        memory = f"{found['memory']:.2f}" if found["memory"] else "-"
        print(
            f"{side:10}{found['seconds']:>10.4f}{found['tokens'] / found['seconds']:>10.0f}"
            f"{memory:>8}{found['loss']:>8.3f}{ours_s / found['seconds']:>12.2f}"
        )
    if results["train"]["mfu"]:
        print(f"train: MFU {results['train']['mfu']:.1%}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
