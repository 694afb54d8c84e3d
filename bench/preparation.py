"""Tokenizing chats on all CPUs of this machine, and on one: rows a second, and the same files.

20,000 chats in the format of ChatML, whose template runs in Python for each of them. The sides take
turns. The time counts from the first look at the data, with the import of the tokenizer's library.
`python bench/preparation.py [--rows N]`
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from subprocess import run

sys.path.insert(0, str(Path(__file__).parent.parent))

from train.config.config import Config
from train.data import dataset
from train.data.tokenizer_workers import cpus
from train.distributed.env import RankEnv
from train.files import measure
from train.tools.demo_assets import make_tokenizer

ROUNDS = 3
CHATML = """
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WORDS = [
    "the", "model", "answers", "a", "question", "about", "data", "that", "nobody", "has", "read",
    "before", "this", "day",
]  # fmt: skip


def make(folder: Path, rows: int) -> None:
    """Write a tokenizer, and chats of one to three questions."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 40)))

    tokenizer = make_tokenizer([text() for _ in range(500)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder / "model")
    (folder / "model/config.json").write_text("{}")
    with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(rows):
            turns = [
                {"role": role, "content": text()}
                for _ in range(rng.randint(1, 3))
                for role in ("user", "assistant")
            ]
            file.write(json.dumps({"messages": turns}) + "\n")


def prepare(folder: Path, cache: Path) -> None:
    """Tokenize in this process, and print the seconds."""
    config = Config(
        name_or_path=str(folder / "model"),
        dataset_path=str(folder / "chats.jsonl"),
        output_dir=str(folder / "output"),
        cache_dir=str(cache),
        seq_len=2048,
    )
    began = time.perf_counter()
    dataset.prepare(config, RankEnv())
    print(time.perf_counter() - began)


def once(folder: Path, side: str, number: int) -> tuple[float, dict[str, str]]:
    """Tokenize in a new process; return seconds, and the hashes of the files."""
    cache = folder / f"{side}-{number}"
    command = [sys.executable, __file__, "--prepare", str(folder), "--cache", str(cache)]
    if side == "one CPU":
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    took = float(run(command, check=True, capture_output=True, text=True).stdout)
    files = (path for path in cache.rglob("*") if path.is_file() and "scan-" not in path.name)
    return took, {str(path.relative_to(cache)): measure(path).sha256 for path in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare, options.cache)
        return
    sides = ("one CPU", f"{cpus()} CPUs")
    times: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.rows)
        for number in range(ROUNDS):
            found = []
            for side in sides:
                took, files = once(folder, side, number)
                times[side].append(took)
                found.append(files)
            if found[0] != found[1]:
                sys.exit("the files differ")
    best = [min(times[side]) for side in sides]  # (other work only takes time away)
    for side, took in zip(sides, best, strict=True):
        each = ", ".join(f"{one:.1f}" for one in times[side])
        print(f"{side:8} {options.rows / took:8,.0f} rows/s, {took:.1f} s ({each})")
    print(f"{'ratio':8} {best[0] / best[1]:8.2f}")


if __name__ == "__main__":
    main()
