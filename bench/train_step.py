"""A training step of two ranks, FSDP and LoRA on CPUs: train/ beside the Trainer with accelerate.

Same random Llama, same samples in the same order, same batch, AdamW, a line a step. The sides take
turns, each start is two fresh processes, and the first steps are left out. The losses of both are
printed: they show that both did the same work. Ends with what a checkpoint costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from train.config.config import Config

RANKS = 2
ROUNDS = 3
SEQ_LEN = 128
LAYERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "trainer"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--save", choices=("no", "sync", "async"), default="no")
    options = parser.parse_args()
    if options.side:
        clock = Clock()
        found = (ours if options.side == "ours" else trainer)(options, clock)
        name = f"result-{os.environ['RANK']}.json"
        (options.folder / name).write_text(json.dumps(found | clock.result()))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, [SEQ_LEN] * (STEPS * RANKS * PER_DEVICE * ACCUMULATION), LAYERS)
        results: dict[str, list[dict[str, Any]]] = {"ours": [], "trainer": []}
        for _ in range(ROUNDS):
            for side, rows in results.items():
                rows.append(turn(side, folder))
        saves = {how: turn("ours", folder, save=how) for how in ("sync", "async")}
    report(results, saves)


def config(folder: Path, save: str) -> Config:
    from train.config.config import Config

    return Config(
        name_or_path=str(folder / "model"),
        dataset_path=str(folder / "data.jsonl"),
        cache_dir=str(folder / "tokens"),
        output_dir=str(folder / f"output-{save}"),
        seq_len=SEQ_LEN,
        batching="plain",
        per_device_train_batch_size=PER_DEVICE,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        lr_scheduler_type="constant",
        learning_rate=1e-3,
        parallel="fsdp",
        save_steps=None if save == "no" else 2,
        save_minutes=0,
        async_save=save == "async",
    )


def turn(side: str, folder: Path, save: str = "no") -> dict[str, Any]:
    """Run one side on all ranks."""
    return start(__file__, ["--side", side, "--save", save], folder, RANKS)


def ours(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    from train.__main__ import train as go

    count_steps(clock)
    chosen = config(options.folder, options.save)
    if go(chosen):
        sys.exit(1)
    lines = (Path(chosen.output_dir) / "metrics.jsonl").read_text().splitlines()
    rows = [row for line in lines if (row := json.loads(line))["kind"] == "step"]
    return {
        "losses": [row["loss"] for row in rows],
        "saves": [row["save_s"] for row in rows if "save_s" in row],
    }


def trainer(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    import torch
    from accelerate import DistributedType, FullyShardedDataParallelPlugin
    from peft import get_peft_model
    from torch.distributed.fsdp import FSDPModule
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from train.data.batches import order
    from train.data.dataset import prepare
    from train.distributed.env import RankEnv
    from train.model.lora_targets import EVERY, Targets, lora

    chosen = config(options.folder, "no")
    corpus = prepare(chosen, RankEnv(node_rank=0, nodes=1))
    samples = [
        {
            name: torch.from_numpy(array)
            for name, array in zip(("input_ids", "labels"), pair, strict=True)
        }
        for pair in map(corpus.train.sample, order(chosen.seed, 0, len(corpus.train)).tolist())
    ]

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.mark()

    class InOrder(Trainer):  # type: ignore[misc]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            # Asked for FSDP on CPUs, accelerate silently does DDP. All that keeps its own FSDP2
            # from being used there is this value.
            shared = vars(self.accelerator.state)
            shared["distributed_type"], shared["fsdp_plugin"] = DistributedType.FSDP, plugin
            self.is_fsdp_enabled = True

        def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
            return SequentialSampler(samples)

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(chosen.name_or_path),
        lora(chosen, Targets(modules=EVERY[0], parameters=())),
    )
    arguments = TrainingArguments(
        output_dir=str(options.folder / "trainer"),
        **for_transformers(chosen),
    )
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        state_dict_type="SHARDED_STATE_DICT",
    )
    run = InOrder(model=model, args=arguments, train_dataset=samples, callbacks=[Marks()])
    run.train()
    assert sum(isinstance(module, FSDPModule) for module in model.modules()) > LAYERS
    return {"losses": [row["loss"] for row in run.state.log_history if "loss" in row]}


def report(results: dict[str, list[dict[str, Any]]], saves: dict[str, dict[str, Any]]) -> None:
    """Print both sides and their ratios."""

    def ratio(what: str) -> str:
        pairs = [
            one[what] / other[what]
            for one, other in zip(results["ours"], results["trainer"], strict=True)
        ]
        return f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"

    for rows in results.values():
        for row in rows:
            row["step"] = statistics.median(row["seconds"])
    print(
        f"{RANKS} ranks, {ACCUMULATION} x {PER_DEVICE} x {SEQ_LEN} tokens each, "
        f"{STEPS - WARM} steps, {ROUNDS} rounds; medians"
    )
    for side, name in (("ours", "train/"), ("trainer", "Trainer + accelerate")):
        step, cpu, mib = (
            statistics.median(row[what] for row in results[side]) for what in ("step", "cpu", "mib")
        )
        losses = results[side][0]["losses"]
        print(
            f"{name:21} step {step:.3f} s, processor {cpu:.3f} s, peak {mib:.0f} MiB a rank, "
            f"loss {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    print(f"ratio of the step       {ratio('step')}")
    print(f"ratio of processor time {ratio('cpu')}, wanted <= 0.85")
    print(f"ratio of the peak       {ratio('mib')}, wanted <= 1")
    for how, row in saves.items():
        print(
            f"a checkpoint ({how}) stops the training for {statistics.median(row['saves']):.3f} s"
        )


if __name__ == "__main__":
    main()
