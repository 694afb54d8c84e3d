"""Whether training works on this machine: a toy is trained, saved, resumed and exported."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from train.config.config import Config
from train.config.parse import Arguments
from train.distributed.env import RankEnv
from train.errors import DONE, USAGE, ConfigError
from train.observe.records import NAME, read
from train.tools.merge import ADAPTER, load_adapter, load_base, loaded

STEPS, SAVED = 4, 2
HELD_OUT = 16
"""Samples of each evaluation: all of the toy's would take longer than its training."""
LIMIT = 300.0
LAUNCHER_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
OWN = {
    "dataset_path", "eval_dataset_path", "eval_split", "global_batch_size",
    "gradient_accumulation_steps", "lora_target_modules", "max_steps", "name_or_path", "output_dir",
    "report_to", "resume_from_checkpoint", "save_epochs", "save_minutes", "save_steps",
    "save_total_limit", "seq_len", "warmup_ratio", "warmup_steps",
}  # fmt: skip
"""Keys that the toy has its own values for; the others are taken as given."""


def main(arguments: Arguments) -> int:
    """Run it on this machine; under torchrun, srun or mpirun, on each node's first rank only."""
    if RankEnv.from_environment().local_rank:
        return DONE
    # Refuses what cannot be.
    config = arguments.config(name_or_path="toy", dataset_path="toy")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="train-smoke-") as name:
        try:
            for said in _stages(Path(name), _keys(arguments), _processes(config)):
                print(f"{time.perf_counter() - began:6.1f} s  {said}", flush=True)
        except (ConfigError, subprocess.TimeoutExpired) as error:
            print(f"error: {error}", file=sys.stderr)
            return USAGE
    print("everything works here")
    return DONE


def _keys(arguments: Arguments) -> list[str]:
    """Return what was given, for the children, but for what the toy decides."""
    values = {name: given.value for name, given in arguments.given.items() if name not in OWN}
    texts = {
        name: ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }
    return [f"--set={name}={text}" for name, text in texts.items()]


def _stages(folder: Path, keys: list[str], processes: int) -> Iterator[str]:
    """Run the parts one by one, and yield what each has verified."""
    from train.tools import demo_assets

    demo_assets.make(folder, pretrain=0, steps=STEPS)
    held_out = folder / "eval.jsonl"
    lines = held_out.read_text(encoding="utf-8").splitlines(keepends=True)
    held_out.write_text("".join(lines[:HELD_OUT]), encoding="utf-8")
    yield "made a toy model and data"
    common = [*keys, f"--max-steps={STEPS}", "--eval-steps=2", "--global-batch-size=4"]
    common += ["--set=seq_len=64", f"--save-steps={SAVED}"]
    whole, resumed = folder / "whole", folder / "resumed"
    _train(folder, processes, [*common, f"--output-dir={whole}"])
    losses = _losses(whole)
    if len(losses) != STEPS or not all(map(math.isfinite, losses.values())):
        raise ConfigError(f"expected {STEPS} steps with finite losses, found {losses}")
    yield f"trained {STEPS} steps on {processes} processes, checkpoints at {SAVED}, {STEPS}"
    checkpoint = next(whole.glob(f"step-*{SAVED}"), None)
    if checkpoint is None:
        raise ConfigError(f"expected a checkpoint of step {SAVED} in {whole}, found none")
    common += [f"--output-dir={resumed}", f"--resume-from-checkpoint={checkpoint}"]
    _train(folder, processes, common)
    again = _losses(resumed)
    if again != {step: loss for step, loss in losses.items() if step > SAVED}:
        raise ConfigError(f"expected the same losses after resuming: {losses}, found {again}")
    yield f"resumed at step {SAVED}: the same losses bit for bit"
    yield _reload(folder / "model", resumed / "adapter")


def _processes(config: Config) -> int:
    """Return how many processes to train with: two, if there are GPUs for them or none at all."""
    if config.parallel == "single":
        return 1
    import torch

    return min(2, torch.cuda.device_count()) or 2


def _train(folder: Path, processes: int, keys: list[str]) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith("PET_")  # torchrun's flags
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    argv = [sys.executable]
    if processes > 1:
        argv += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    argv += ["-m", "train"]
    argv += [f"--config={folder / 'config.yaml'}", *keys]
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise ConfigError(f"training ended with {done.returncode}:\n{last}")


def _losses(output: Path) -> dict[int, float]:
    return {
        record["step"]: float(record["loss"])
        for record in read(output / NAME)
        if record["kind"] == "step"
    }


def _reload(model: Path, adapter: Path) -> str:
    """Load the adapter with PEFT, and verify that it changes the base's logits."""
    import torch

    if not adapter.is_dir():  # full fine-tuning exports a model instead
        return "exported the model"
    base = load_base(str(model))
    ids = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        before = base(input_ids=ids).logits
        trained = loaded(lambda: load_adapter(base, adapter), "expected an adapter that PEFT loads")
        after = trained(input_ids=ids).logits
    if torch.equal(before, after):
        problem = "expected an adapter that changes the model, found one that does nothing"
        raise ConfigError(problem)
    about = json.loads((adapter / ADAPTER).read_text())
    return f"exported an adapter (r={about['r']}) that PEFT loads"
