"""The steps, most wanted first: the budget may end before the last one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.machine import Machine
from bench.gpu.steps import Step
from bench.gpu_train import SIDES, settings

VARIANT_STEPS = 12
ALL_GPUS_STEPS = 20
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
ALONE |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Variables of a launcher: `--check` estimates for one rank, whatever the machine has."""
BATCH_GIB = 10
"""Memory of a card for each sample of 2048 tokens that a batch has, up to 8."""
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "lora": {},
    "checkpointing": {"activation_checkpointing": "true"},
    "fsdp": {"parallel": "fsdp"},
    "full": {"method": "full", "learning_rate": 1e-5},
}
"""What differs from the benchmark's training; the first is that training itself."""
GPU_TESTS = {
    "tests-train": (150.0, "tests/train", ("test_gpu.py", "model/test_chunked_loss.py")),
    "tests-probe": (80.0, "tests/node/probe", ("test_gpu_trial.py", "test_job_ladder.py")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the trainings are."""

    batch: int
    seq_len: int
    steps: int
    tiny: bool

    def options(self, folder: Path, *, batch: int = 0) -> argparse.Namespace:
        """Return the options of the benchmark."""
        return argparse.Namespace(
            folder=folder, batch=batch or self.batch, seq_len=self.seq_len, steps=self.steps,
            tiny=self.tiny,
        )  # fmt: skip


def sizes(machine: Machine, *, cpu: bool) -> Sizes:
    """Return sizes that fit the smallest card; 8 samples of 2048 tokens from 80 GB on."""
    if cpu:
        return Sizes(batch=2, seq_len=128, steps=12, tiny=True)
    batch = 8 if machine.memory >= 70 << 30 else max(1, machine.memory // (BATCH_GIB << 30))
    return Sizes(batch=batch, seq_len=2048, steps=40, tiny=False)


def steps(machine: Machine, size: Sizes, *, work: Path, cpu: bool) -> list[Step]:
    """Return all steps.

    Args:
        machine: The interpreter that runs them, and the GPUs.
        size: How large the trainings are.
        work: A folder for models, data and metrics.
        cpu: Whether this is a trial of the script on a machine without a GPU.
    """
    made = _Plan(machine=machine, size=size, work=work, cpu=cpu)
    return [
        made.module("recordings", "what nvidia-smi, the kernel and the packages report", 60,
                    "bench.gpu.recordings", str(work / "recordings"), made.device),
        made.module("fork", "a forked child may use the device", 60, "bench.gpu.fork", made.device),
        made.bench("make", "a random Llama, a tokenizer and samples", 75),
        *made.on_all_gpus(),
        *(made.bench(side, f"benchmark: {side}", 90, "bench-make") for side in SIDES),
        *made.variants(),
        made.module("ladder", "the rungs of `check --deep` on this machine", 110,
                    "bench.gpu.ladder", made.device, "2" if cpu else "1"),
        *made.tests(),
        made.module("probe", "casts, loss, attention, noise of the trial", 90, "bench.gpu.probe"),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    machine: Machine
    size: Sizes
    work: Path
    cpu: bool

    @property
    def device(self) -> str:
        return "cpu" if self.cpu else "cuda"

    @property
    def model(self) -> Path:
        return self.work / "bench"

    def module(
        self, name: str, about: str, limit: float, module: str, *arguments: str,
        needs: tuple[str, ...] = (), env: Mapping[str, str] | None = None, gpus: int = 1,
    ) -> Step:  # fmt: skip
        argv = (self.machine.python, "-m", module, *arguments)
        return Step(
            name=name, about=about, limit=limit, argv=argv, needs=needs, env=env or {}, gpus=gpus,
            all_gpus=gpus > 1,
        )  # fmt: skip

    def bench(self, side: str, about: str, limit: float, *needs: str) -> Step:
        size = self.size
        options = ["--side", side, "--folder", str(self.model), "--batch", str(size.batch)]
        options += ["--seq-len", str(size.seq_len), "--steps", str(size.steps)]
        options += ["--tiny"] if size.tiny else []
        return self.module(f"bench-{side}", about, limit, "bench.gpu_train", *options, needs=needs)

    def settings(self, name: str, steps: int, *, batch: int = 0) -> list[str]:
        found = settings(self.size.options(self.model, batch=batch), self.work / name)
        cache = self.work / "cache"
        return [
            *found,
            f"--set=max_steps={steps}",
            "--set=save_minutes=0",
            f"--set=cache_dir={cache}",
        ]

    def on_all_gpus(self) -> Iterator[Step]:
        """Yield what two GPUs are needed for: a hang of NCCL shows here first."""
        count = 2 if self.cpu else max(2, len(self.machine.gpus))
        for layout in ("ddp", "fsdp"):
            name = f"all-gpus-{layout}"
            yield self.module(
                name, f"{ALL_GPUS_STEPS} steps of {layout} on all GPUs", 90,
                "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", "train",
                *self.settings(name, ALL_GPUS_STEPS), f"--set=parallel={layout}",
                needs=("bench-make",), gpus=2,
            )  # fmt: skip
        yield self.module("smoke", "`python -m train --smoke`", 90, "train", "--smoke", gpus=2)

    def variants(self) -> Iterator[Step]:
        """Yield the estimate of `--check` and a training for each variant."""
        for name, changes in VARIANTS.items():
            batch = max(1, self.size.batch // 4) if name == "full" else 0
            keys = self.settings(name, VARIANT_STEPS, batch=batch)
            keys += [f"--set={key}={value}" for key, value in changes.items()]
            yield self.module(f"check-{name}", f"`train --check` for {name}", 30, "train",
                              "--check", *keys, needs=("bench-make",), env=ALONE)  # fmt: skip
            if changes:
                yield self.module(f"run-{name}", f"{VARIANT_STEPS} steps of {name}", 80, "train",
                                  *keys, needs=("bench-make",))  # fmt: skip

    def tests(self) -> Iterator[Step]:
        """Yield the tests with the mark `gpu`.

        Without the conftest of folders above, which import packages that a GPU machine lacks.
        """
        chosen = (
            ("-m", "not gpu", "-k", "optimizer or known_product") if self.cpu else ("-m", "gpu")
        )
        # Skipped for want of a GPU, they would show nothing.
        required = {} if self.cpu else {"CLUSTERCTL_TESTS_REQUIRE": "gpu"}
        for name, (limit, room, files) in GPU_TESTS.items():
            yield self.module(
                name, f"tests marked gpu in {room}", limit, "pytest", "-q", "-W", "ignore",
                "-p", "no:cacheprovider", "-p", "tests.gpu_marker", f"--confcutdir={room}",
                f"--junitxml={self.work / name}.xml", f"--basetemp={self.work / name}-tmp",
                "--durations=5", *chosen,
                *(f"{room}/{file}" for file in files), env=required,
            )  # fmt: skip
