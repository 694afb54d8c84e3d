"""Gives each rank of train/ a GPU until the groups are made; it computes on the CPU."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from tests.lazy_torch import torch

if TYPE_CHECKING:
    from train.distributed.devices import Device
    from train.distributed.env import RankEnv


def strict(_: int) -> None:
    """Be a rank whose groups are those of CUDA: for `World.start(before=...)`."""
    stand_in()


def impatient(_: int) -> None:
    """Be such a rank in a test in which one does not come."""
    stand_in(patience=3.0)


def stand_in(*, patience: float = 60.0) -> None:
    """Replace what asks for the device; the choice of backend and of `device_id` stays train's."""
    from tests.strict_nccl.interposed import install
    from train.distributed import devices
    from train.distributed.process_group import Ranks

    install(patience=patience)
    devices.choose = choose
    devices.describe = describe
    make = Ranks.__init__

    def on_cpu(self: Ranks, env: RankEnv, _: torch.device, *rest: Any) -> None:
        make(self, env, torch.device("cpu"), *rest)

    Ranks.__init__ = on_cpu  # type: ignore[method-assign,assignment]


def choose(env: RankEnv) -> torch.device:
    """Return the GPU that this rank would have."""
    torch.set_num_threads(1)
    device = torch.device("cuda", env.local_rank)
    torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> Device:
    """Return what the other ranks must know of it."""
    from train.distributed.devices import Device

    return Device(socket.gethostname(), device.type, "")
