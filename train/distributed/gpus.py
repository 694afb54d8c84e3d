"""The GPUs of this node that a process may use, as nvidia-smi lists them, without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.distributed import host_memory

FIELDS = "index,uuid,memory.total,compute_cap,name"
SHARED = frozenset({"[N/A]", "[Not Supported]"})
"""What stands for the memory of a GPU that computes in the host's, such as GB10 and Jetson Thor."""
WITH_BFLOAT16 = (8, 0)
"""The first compute capability with bfloat16 in its tensor cores: A100. Older ones emulate it."""
NODES = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or a MIG slice of one."""

    index: str
    uuid: str
    memory: int | None
    """In bytes; None if it does not say."""
    capability: tuple[int, int] | None
    name: str
    said: str = ""
    """What nvidia-smi prints in place of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What this node computes on."""

    count: int
    memory: int
    """Bytes of the smallest one."""
    name: str
    bfloat16: bool = True
    """Whether they compute in it, not only emulate it."""
    lost: tuple[Gpu, ...] = ()
    """GPUs that do not answer."""

    @property
    def are_gpus(self) -> bool:
        """Whether they are GPUs."""
        return self.name != "CPU"


def find_devices(environment: Mapping[str, str] = os.environ) -> Devices:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, or this node's CPU."""
    every = listed()
    shown = visible(every, environment.get("CUDA_VISIBLE_DEVICES"))
    here = [gpu for gpu in shown if gpu.memory is not None or gpu.said in SHARED]
    lost = tuple(gpu for gpu in shown if gpu not in here)
    physical = host_memory.physical()
    if not here:
        return Devices(count=1, memory=physical, name="CPU", lost=lost)
    return Devices(
        count=len(here),
        memory=min(physical if gpu.memory is None else gpu.memory for gpu in here),
        name=here[0].name,
        bfloat16=all(not gpu.capability or gpu.capability >= WITH_BFLOAT16 for gpu in here),
        lost=lost,
    )


def are_hidden(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES hides all GPUs on purpose."""
    return environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1", "NoDevFiles"}


def are_there() -> bool:
    """Return whether this node has a GPU of NVIDIA's, by its driver or by its device file."""
    return any(re.fullmatch(r"nvidia\d+", path.name) for path in NODES.glob("nvidia*")) or bool(
        listed()
    )


def listed() -> list[Gpu]:
    """Return this node's GPUs, those with MIG followed by their slices."""
    gpus = []
    for line in _nvidia_smi(f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"):
        index, uuid, memory, capability, name = (line.split(", ", 4) + [""] * 4)[:5]
        if index.isdigit() and name:
            mib = re.fullmatch(r"(\d+)(\.\d+)?", memory)
            version = re.fullmatch(r"(\d+)\.(\d+)", capability)
            gpus.append(
                Gpu(
                    index=index,
                    uuid=uuid,
                    memory=int(mib[1]) << 20 if mib else None,
                    capability=(int(version[1]), int(version[2])) if version else None,
                    name=name,
                    said=memory,
                )
            )
    return gpus


def visible(gpus: Sequence[Gpu], shown: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES shows.

    CUDA takes numbers and the beginnings of UUIDs, and ignores what follows a wrong one.
    """
    if shown is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in shown.split(","):
        name = word.strip()
        chosen = [
            gpu for gpu in (_slices() if name.startswith("MIG-") else gpus)
            if name and (gpu.index == name or (not name.isdigit() and gpu.uuid.startswith(name)))
        ]  # fmt: skip
        if len(chosen) != 1 or chosen[0] in found:
            break
        found += chosen
    return found


def _slices() -> list[Gpu]:
    """Return the MIG slices of this node's GPUs; a slice has its memory in its name, 3g.40gb."""
    found, card = [], ""
    for line in _nvidia_smi("-L"):
        if whole := re.match(r"GPU \d+: (.+?) \(UUID", line):
            card = whole[1]
        if part := re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s.*\(UUID: (MIG-[^)]+)\)", line):
            name, memory = f"{card} MIG {part[1]}", int(part[2]) << 30
            found.append(Gpu(index="", uuid=part[3], memory=memory, capability=None, name=name))
    return found


def _nvidia_smi(*arguments: str) -> list[str]:
    """Return the lines that nvidia-smi prints; none without it."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
