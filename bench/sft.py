"""Steps of SFT on CPUs: train/, TRL's SFTTrainer and a plain loop of transformers, case by case.

Cases are LoRA and all weights, rows as they come and packed, one process and two with DDP. All
sides get the same Llama, the same first adapter and the same rows in each step; they take turns,
each start is a fresh process, and the first steps are left out. It fails if a loss differs by more
than 1e-5 of it. TRL is left out if it is not installed (`pip install trl`).
`python bench/sft.py [ROUNDS]`
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench._training import (
    ACCUMULATION,
    PER_DEVICE,
    STEPS,
    WARM,
    Clock,
    count_steps,
    for_transformers,
    make,
    start,
)
from train.config.config import Config

ROUNDS = 2
SEQ_LEN = 256
LAYERS = 4
MOST_RANKS = 2
SAME = 1e-5
SIDES = {"ours": "train/", "trl": "TRL", "loop": "plain loop"}


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    method: str
    batching: str
    ranks: int

    def words(self) -> list[str]:
        """Return it as arguments."""
        return ["--method", self.method, "--batching", self.batching, "--ranks", str(self.ranks)]

    def __str__(self) -> str:
        return (
            f"{self.method:4} {self.batching:6} {self.ranks} rank{'s' if self.ranks > 1 else ' '}"
        )

    def config(self, folder: Path) -> Config:
        """Return it as train/ has it."""
        return Config(
            name_or_path=str(folder / "model"),
            dataset_path=str(folder / "data.jsonl"),
            cache_dir=str(folder / "tokens"),
            output_dir=str(folder / "output"),
            seq_len=SEQ_LEN,
            method=self.method,  # type: ignore[arg-type]
            batching=self.batching,  # type: ignore[arg-type]
            per_device_train_batch_size=PER_DEVICE,
            gradient_accumulation_steps=ACCUMULATION,
            max_steps=STEPS,
            lr_scheduler_type="constant",
            learning_rate=1e-3,
            parallel="ddp" if self.ranks > 1 else "single",
            save_minutes=0,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--method")
    parser.add_argument("--batching")
    parser.add_argument("--ranks", type=int)
    options = parser.parse_args()
    if options.side:
        one_side(options)
        return
    sides = [side for side in SIDES if side != "trl" or importlib.util.find_spec("trl")]
    dice = random.Random(0)
    # Packed, a row takes several samples, and all steps are of one epoch.
    count = 4 * STEPS * MOST_RANKS * PER_DEVICE * ACCUMULATION
    lengths = [min(SEQ_LEN, max(16, int(dice.lognormvariate(4.4, 0.7)))) for _ in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, lengths, LAYERS)
        print(
            f"a step is {ACCUMULATION} x {PER_DEVICE} rows of up to {SEQ_LEN} tokens a rank; "
            f"medians of {options.rounds} rounds, of {STEPS - WARM} steps each"
        )
        for values in product(("lora", "full"), ("plain", "packed"), (1, MOST_RANKS)):
            case = Case(*values)
            rows: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side in sides:
                    words = ["--side", side, *case.words()]
                    rows[side].append(start(__file__, words, folder, case.ranks))
            report(case, rows)


def report(case: Case, results: dict[str, list[dict[str, Any]]]) -> None:
    """Print what each side did, as a ratio to train/."""

    def median(what: str, side: str) -> float:
        return float(statistics.median(row[what] for row in results[side]))

    def ratio(what: str, side: str) -> str:
        pairs = zip(results["ours"], results[side], strict=True)
        found = [ours[what] / other[what] for ours, other in pairs]
        return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"

    for side, rows in results.items():
        for row in rows:
            row["tok/s"] = row["tokens"] / sum(row["seconds"])
        losses = [row["losses"] for row in rows]
        wanted = results["ours"][0]["losses"]
        off = max(abs(a - b) / b for one in losses for a, b in zip(one, wanted, strict=True))
        said = f"{case}  {SIDES[side]:10} {median('tok/s', side):6.0f} tok/s"
        said += f", {median('cpu', side):.3f} s of CPU a step, {median('mib', side):4.0f} MiB"
        if side != "ours":
            said += f"; train/ to it: tok/s {ratio('tok/s', side)}, CPU {ratio('cpu', side)}"
            said += f", MiB {ratio('mib', side)}; losses differ by {off:.0e}"
        print(said, flush=True)
        if off > SAME:
            sys.exit(f"expected equal losses, found {rows[0]['losses']}\nwhere train/ has {wanted}")


def one_side(options: argparse.Namespace) -> None:
    """Train on one rank, and write down how it went."""
    import peft
    import torch
    import transformers  # noqa: F401

    case = Case(options.method, options.batching, options.ranks)
    config, clock = case.config(options.folder), Clock()
    steps = list(rows_of_steps(config, case.ranks))
    if options.side == "trl":
        import datasets  # type: ignore[import-not-found]  # noqa: F401
        import trl  # type: ignore[import-not-found]  # noqa: F401
    before = psutil.Process().memory_info().rss / 2**20
    del peft
    torch.manual_seed(0)
    losses = {"ours": ours, "trl": with_trl, "loop": loop}[options.side](case, config, steps, clock)
    counted = sum(len(ids) for step in steps[WARM:] for row in step for ids, _ in row)
    found = clock.result() | {"losses": losses, "tokens": counted}
    found["mib"] -= before  # without the libraries
    name = f"result-{os.environ['RANK']}.json"
    (options.folder / name).write_text(json.dumps(found))


Row = list[tuple[Any, Any]]
"""Samples that share a row: token ids and labels of each."""


def rows_of_steps(config: Config, ranks: int) -> Iterator[list[Row]]:
    """Yield the rows of each step over all ranks, as train/ takes them."""
    from train.config.batch_size import batch_size
    from train.data.batches import Pool
    from train.data.dataset import prepare
    from train.distributed.env import RankEnv

    data = prepare(config, RankEnv(node_rank=0, nodes=1)).train
    pool = Pool(data, config, batch_size(config, ranks).total)
    for step in range(STEPS):
        rows = pool.take(0, step * pool.batch)
        assert len(rows) == pool.batch, "the samples are too few for one epoch"
        yield [[data.sample(int(number)) for number in row] for row in rows]


def ours(_: Case, config: Config, _steps: list[list[Row]], clock: Clock) -> list[float]:
    from train.__main__ import train as go

    count_steps(clock)
    if go(config):
        sys.exit(1)
    lines = (Path(config.output_dir) / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if row["kind"] == "step"][-STEPS:]


def network(config: Config) -> Any:
    """Return the model as transformers and PEFT make it, with the first adapter of train/."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    from train.model import adapters
    from train.model.lora_targets import EVERY, Targets, lora

    model = AutoModelForCausalLM.from_pretrained(config.name_or_path)
    if config.method == "lora":
        model = get_peft_model(model, lora(config, Targets(modules=EVERY[0], parameters=())))
        adapters.fill(model, config)
    return model.train()


def with_trl(case: Case, config: Config, steps: list[list[Row]], clock: Clock) -> list[float]:
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.mark()

    class InOrder(SFTTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
            return SequentialSampler(data)

    packed = case.batching == "packed"
    data = Dataset.from_list(
        [
            {
                "input_ids": [int(token) for ids, _ in row for token in ids],
                "labels": [int(label) for _, labels in row for label in labels],
                "seq_lengths": [len(ids) for ids, _ in row],
            }
            for step in steps
            for row in step
        ]
    )
    arguments = SFTConfig(
        output_dir=str(Path(config.output_dir).with_name("trl")),
        **for_transformers(config),
        bf16=False,
        ddp_find_unused_parameters=False,
        gradient_checkpointing=False,
        max_length=None,
        padding_free=packed,  # as with packing, but for rows that are packed already
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    run = InOrder(
        model=network(config),
        args=arguments,
        train_dataset=data if packed else data.remove_columns("seq_lengths"),
        processing_class=AutoTokenizer.from_pretrained(config.name_or_path),
        callbacks=[Marks()],
    )
    run.train()
    return [row["loss"] for row in run.state.log_history if "loss" in row]


def loop(case: Case, config: Config, steps: list[list[Row]], clock: Clock) -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    model = network(config)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward = model
    if case.ranks > 1:
        dist.init_process_group("gloo")
        forward = DistributedDataParallel(model)
    adamw = torch.optim.AdamW(learned, lr=config.learning_rate, weight_decay=0.0)
    losses = []
    for step in steps:
        count = sum(len(ids) - 1 for row in step for ids, _ in row)
        mine = step[rank :: case.ranks]
        total = torch.zeros(())
        for first in range(0, len(mine), PER_DEVICE):
            batch = padded(mine[first : first + PER_DEVICE], packed=case.batching == "packed")
            labels = batch.pop("labels")
            held = case.ranks > 1 and first + PER_DEVICE < len(mine)
            with forward.no_sync() if held else torch.enable_grad():
                logits = forward(**batch, use_cache=False).logits[:, :-1].flatten(0, 1)
                loss = functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
                (loss * case.ranks / count).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(learned, config.max_grad_norm)
        adamw.step()
        adamw.zero_grad()
        if case.ranks > 1:
            dist.all_reduce(total)
        losses.append(float(total) / count)
        clock.mark()
    return losses


def padded(rows: list[Row], *, packed: bool) -> dict[str, Any]:
    """Return rows as one batch for transformers."""
    import torch

    width = max(sum(len(ids) for ids, _ in row) for row in rows)
    batch = {
        "input_ids": torch.zeros(len(rows), width, dtype=torch.long),
        "labels": torch.full((len(rows), width), -100),
        "position_ids": torch.zeros(len(rows), width, dtype=torch.long),
    }
    for line, row in enumerate(rows):
        at = 0
        for ids, labels in row:
            end = at + len(ids)
            batch["input_ids"][line, at:end] = torch.from_numpy(ids)
            batch["labels"][line, at + 1 : end] = torch.from_numpy(labels[1:])
            batch["position_ids"][line, at:end] = torch.arange(len(ids))
            at = end
        batch["position_ids"][line, at:] = torch.arange(width - at)
    if not packed:
        batch["attention_mask"] = (batch["labels"] != -100).long()
        batch["attention_mask"][:, 0] = 1
        del batch["position_ids"]
    return batch


if __name__ == "__main__":
    main()
