"""A training step of two ranks, FSDP and LoRA on CPUs: train/ beside the Trainer with accelerate.

Same random Llama, same samples in the same order, same batch, AdamW, a line a step. The sides take
turns, each start is two fresh processes, and the first steps are left out. The losses of both are
printed: they show that both did the same work. Ends with what a checkpoint costs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from train.config.config import Config

RANKS = 2
ROUNDS = 3
STEPS = 12
WARM = 3
"""Steps left out: buffers are made in them."""
SEQ_LEN = 128
PER_DEVICE = 4
ACCUMULATION = 2
VOCABULARY = 2048
LAYERS = 8


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
        make(folder)
        results: dict[str, list[dict[str, Any]]] = {"ours": [], "trainer": []}
        for _ in range(ROUNDS):
            for side, rows in results.items():
                rows.append(start(side, folder))
        saves = {how: start("ours", folder, save=how) for how in ("sync", "async")}
    report(results, saves)


def make(folder: Path) -> None:
    """Make the base model and the samples: text of random words that fill whole rows."""
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
            num_hidden_layers=LAYERS,
            num_attention_heads=8,
            num_key_value_heads=4,
            bos_token_id=1,
            eos_token_id=1,
            pad_token_id=1,
        )
    ).save_pretrained(folder / "model")
    dice = random.Random(0)
    rows = STEPS * RANKS * PER_DEVICE * ACCUMULATION
    with (folder / "data.jsonl").open("w") as file:
        for _ in range(rows):
            text = " ".join(f"w{dice.randrange(2, VOCABULARY)}" for _ in range(SEQ_LEN - 1))
            file.write(json.dumps({"text": text}) + "\n")


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


def start(side: str, folder: Path, save: str = "no") -> dict[str, Any]:
    """Run one side on all ranks; return the first rank's times and everybody's peak."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(RANKS):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
        command += ["--save", save]
        log = (folder / f"{side}-{rank}.log").open("w")
        processes.append(
            subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        )
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{side} failed:\n" + (folder / f"{side}-0.log").read_text()[-4000:])
    rows = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(RANKS)]
    first: dict[str, Any] = rows[0]
    return first | {
        "mib": max(row["mib"] for row in rows),
        "cpu": statistics.mean(row["cpu"] for row in rows),
    }


def ours(options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    from train.__main__ import train as go
    from train.trainer import Trainer

    update = Trainer.update

    def timed(self: Trainer, *step: Any) -> Any:
        decision = update(self, *step)
        clock.mark()
        return decision

    Trainer.update = timed  # type: ignore[method-assign,assignment]
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
        per_device_train_batch_size=PER_DEVICE,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=chosen.max_grad_norm,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
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
