"""The accelerators of a node, as the vendor's tool lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator."""

    index: int
    name: str
    uuid: str = ""
    bus_id: str = ""
    memory_mib: int | None = None
    used_mib: int | None = None
    mig: bool | None = None
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool | None = None
    recovery_action: str = ""
    """What the driver asks for (Reset, Reboot, …); empty for nothing or unknown."""
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The accelerators that the vendor's tool lists."""

    tool: str = ""
    """The tool that was asked; empty if none is installed."""
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver can run."""
    devices: tuple[Gpu, ...] = ()
