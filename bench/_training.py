"""What the benchmarks of a training share: a random Llama with samples, ranks, and their clock."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WARM = 3
"""Steps left out: buffers are made in them."""
VOCABULARY = 2048
STEPS, PER_DEVICE, ACCUMULATION = 12, 4, 2


class Clock:
    """What every step took: seconds on the wall, seconds of the processor; and the peak so far."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float, float]] = []

    def mark(self) -> None:
        """Note the end of a step."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.marks.append((time.perf_counter(), time.process_time(), peak))

    def result(self) -> dict[str, Any]:
        """Return the differences, without the first steps."""
        pairs = list(zip(self.marks[WARM - 1 :], self.marks[WARM:], strict=False))
        return {
            "seconds": [after[0] - before[0] for before, after in pairs],
            "cpu": statistics.mean(after[1] - before[1] for before, after in pairs),
            "mib": self.marks[-1][2],
        }


def count_steps(clock: Clock) -> None:
    """Mark the end of each step of train/."""
    from train.trainer import Trainer

    update = Trainer.update

    def timed(self: Trainer, *step: Any) -> Any:
        decision = update(self, *step)
        clock.mark()
        return decision

    Trainer.update = timed  # type: ignore[method-assign,assignment]


def make(folder: Path, lengths: Sequence[int], layers: int) -> None:
    """Make the base model, and samples of random words of these lengths."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY)}
    words["<eos>"] = words.pop("w1")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.save_pretrained(folder / "model")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            bos_token_id=1,
            eos_token_id=1,
            pad_token_id=1,
        )
    ).save_pretrained(folder / "model")
    dice = random.Random(0)
    with (folder / "data.jsonl").open("w") as file:
        for length in lengths:
            text = " ".join(f"w{dice.randrange(2, VOCABULARY)}" for _ in range(length - 1))
            file.write(json.dumps({"text": text}) + "\n")


def for_transformers(config: Any) -> dict[str, Any]:
    """Return the arguments by which a Trainer does what train/ does with this configuration."""
    return {
        "per_device_train_batch_size": PER_DEVICE,
        "gradient_accumulation_steps": ACCUMULATION,
        "max_steps": STEPS,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": config.max_grad_norm,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "ddp_backend": "gloo",
    }


def start(script: str, words: Sequence[str], folder: Path, ranks: int) -> dict[str, Any]:
    """Run a script on all ranks; return the first one's times and everybody's peak.

    Each writes `result-RANK.json` into the folder.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, script, *words, "--folder", str(folder)]
        log = (folder / f"rank-{rank}.log").open("w")
        processes.append(
            subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        )
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{words} failed:\n" + (folder / "rank-0.log").read_text()[-4000:])
    rows = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(ranks)]
    first: dict[str, Any] = rows[0]
    return first | {
        "mib": max(row["mib"] for row in rows),
        "cpu": statistics.mean(row["cpu"] for row in rows),
    }
