"""What each rank computes on: chosen by its local rank, and compared before NCCL is waited for."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from train import versions
from train.distributed import gpus
from train.distributed.env import RankEnv, node_name
from train.errors import LauncherEnvError, NodesDiffer

AGREED = "agreed"


@dataclass(frozen=True, slots=True)
class Device:
    """A rank's device, as the others must know it."""

    host: str
    kind: str
    """As torch calls it: cpu, cuda."""
    uuid: str
    """Which GPU of all that there are; empty for a CPU."""


def choose(env: RankEnv) -> torch.device:
    """Return the device that this process computes on."""
    refuse_unusable()
    if not torch.cuda.is_available():
        if "OMP_NUM_THREADS" not in os.environ:
            # Ranks that each take every core of their node wait for each other.
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // env.local_world_size))
        return torch.device("cpu")
    count = torch.cuda.device_count()
    # A launcher may show each process its own GPU only; `agree` finds two that share one.
    number = 0 if count == 1 else env.local_rank
    if number >= count:
        message = (
            f"local rank {env.local_rank}: expected a GPU of its own on {node_name()}, "
            f"found {count} GPUs\nhint: start as many processes a node as it has GPUs"
        )
        raise LauncherEnvError(message)
    refuse_without_kernels(number)
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def refuse_unusable() -> None:
    """Refuse to train on CPUs next to GPUs that this torch cannot use, 100 times as slowly."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available or gpus.are_hidden() or not gpus.are_there():
        return
    found = (
        " ".join(str(said[-1].message).split()) if said else "torch.cuda.is_available() is False"
    )
    hint = "nvidia-smi names the driver's CUDA; `CUDA_VISIBLE_DEVICES=` on all nodes trains on CPUs"
    if torch.version.cuda is None and torch.version.hip is None:
        found = f"torch {torch.__version__}, which is built without CUDA"
        hint = f"{sys.executable} -m pip uninstall -y torch; {versions.install(torch='')}"
    message = f"devices: expected torch to use the GPUs of {node_name()}, found {found}"
    raise LauncherEnvError(f"{message}\nhint: {hint}")


def refuse_unsuitable(count: int) -> None:
    """Refuse what a start of so many processes would refuse of this node's GPUs."""
    refuse_unusable()
    for number in range(min(count, torch.cuda.device_count())):
        refuse_without_kernels(number)


def refuse_without_kernels(number: int) -> None:
    """Refuse a GPU that this torch has no kernels for, before "no kernel image is available"."""
    built = torch.cuda.get_arch_list()
    if not built:  # torch does not say
        return
    major, minor = torch.cuda.get_device_capability(number)
    if not runs_on(built, (major, minor)):
        message = (
            f"devices: expected kernels for {torch.cuda.get_device_name(number)} of {node_name()} "
            f"(sm_{major}{minor}), found torch {torch.__version__} with {', '.join(built)}"
        )
        hint = "https://pytorch.org/get-started has builds for other versions of CUDA"
        raise LauncherEnvError(f"{message}\nhint: {hint}")


def runs_on(built: Sequence[str], capability: tuple[int, int]) -> bool:
    """Return whether kernels for these architectures run on a GPU of this compute capability.

    Machine code (`sm_80`) runs on later GPUs of its generation, PTX (`compute_90`) on all later
    ones; what ends in `a` on exactly its own.
    """
    return any(_runs_on(each, capability) for each in built)


def _runs_on(built: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", built)
    if not match:  # ROCm's names
        return True
    version = int(match[2]), int(match[3])
    if match[4] == "a":
        return version == capability
    same_generation = version[0] == capability[0]
    return version <= capability and (same_generation or (match[1] == "compute" and not match[4]))


def describe(device: torch.device) -> Device:
    """Return what the other ranks must know of a device."""
    uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    return Device(socket.gethostname(), device.type, uuid)


def agree(store: Store, env: RankEnv, mine: Device) -> None:
    """Send rank 0 this rank's device, and learn whether all of them fit together."""
    devices = PrefixStore("devices", store)
    devices.set(str(env.rank), json.dumps(astuple(mine)))
    if env.rank == 0:
        try:
            rows = [Device(*json.loads(devices.get(str(rank)))) for rank in range(env.world_size)]
        except RuntimeError as error:  # (torch's own) it has met the others, and ended since
            away = [str(r) for r in range(env.world_size) if not devices.check([str(r)])]
            found = f"found no process for rank {', '.join(away)}"
            message = f"expected all {env.world_size} ranks within start_timeout, {found}"
            raise TimeoutError(f"{message}\nhint: their own logs say why") from error
        devices.set(AGREED, conflict(rows) or AGREED)
    said = devices.get(AGREED).decode()
    if said != AGREED:
        raise NodesDiffer(said)


def conflict(rows: Sequence[Device]) -> str:
    """Return why ranks with these devices cannot train together; nothing if they can."""
    ((usual, _), *others) = Counter(row.kind for row in rows).most_common()
    if others:
        unlike = [rank for rank, row in enumerate(rows) if row.kind != usual]
        found = ", ".join(
            f"rank {rank} on {rows[rank].host} on {rows[rank].kind}" for rank in unlike
        )
        return (
            f"devices: expected every rank on the same kind, {usual} here, found {found}"
            f"\nhint: nvidia-smi on {rows[unlike[0]].host} says how its GPUs are; "
            "`CUDA_VISIBLE_DEVICES=` on all nodes trains on CPUs"
        )
    firsts: dict[str, int] = {}
    for rank, row in enumerate(rows):
        first = firsts.setdefault(row.uuid, rank) if row.uuid else rank
        if first != rank:
            return (
                f"devices: expected a GPU of its own for each rank, found rank {first} and rank "
                f"{rank} on {row.host} on the same one ({row.uuid})"
                "\nhint: start as many processes a node as it has GPUs, or give each process its "
                "own in CUDA_VISIBLE_DEVICES"
            )
    return ""
