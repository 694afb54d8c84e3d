"""The accelerators of a node, as the vendor's tool lists them."""

import re
from collections.abc import Collection, Mapping

from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str = ""
    user: str = ""
    """Its owner; empty for unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The errors of a GPU's memory, and the repairs that they need."""

    ecc: bool | None = None
    """Error correction is on."""
    uncorrected_ever: int | None = None
    """Uncorrectable errors in the GPU's life."""
    sram_threshold: bool | None = None
    """Its SRAM had so many errors that the vendor replaces it."""
    retired_pages: int | None = None
    remap_failure: bool | None = None
    repair_pending: bool | None = None
    """A memory channel, or a group of cores, is waiting for a repair."""
    unrepairable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPower:
    """Watts."""

    limit: float | None = None
    default_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHeat:
    """Degrees Celsius."""

    celsius: int | None = None
    margin: int | None = None
    """Left until the GPU slows down; negative if it is hotter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClocks:
    """MHz of the cores."""

    application: int | None = None
    """What a user limited them to; the default if no user did."""
    default: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """The link between a GPU and its machine; while idle it may slow down."""

    width: int | None = None
    max_width: int | None = None
    generation: int | None = None
    max_generation: int | None = None
    """What both the GPU and its slot support."""
    fatal: int | None = None
    """Uncorrectable bus errors (AER) since boot, also those that the device survived."""
    correctable: int | None = None
    """Bus errors since boot that the link repaired by itself."""
    numa: int | None = None
    """The NUMA node of the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFabric:
    """How a GPU joined the NVSwitch fabric."""

    state: str = ""
    """`Completed`, `In Progress`, …; empty for no fabric."""
    status: str = ""
    cluster: str = ""
    """Equal on all machines of one multi-node NVLink fabric; empty without one."""
    unhealthy: str = ""
    """What the driver reports of its health that is not good: `Degraded`, `route unhealthy`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator."""

    index: int
    name: str
    uuid: str = ""
    bus_id: str = ""
    used_mib: int | None = None
    mig: bool | None = None
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool | None = None
    """Memory rows or pages wait to be replaced by spare ones."""
    recovery_action: str = ""
    """What the driver asks for (Reset, Reboot, …); empty for nothing or unknown."""
    asks_recovery: bool | None = None
    """The driver asks for an action; None: this driver does not report it."""
    processes: tuple[GpuProcess, ...] | None = None
    memory: GpuMemory | None = None
    heat: GpuHeat | None = None
    power: GpuPower | None = None
    clocks: GpuClocks | None = None
    link: PcieLink | None = None
    fabric: GpuFabric | None = None
    nvlinks: tuple[bool, ...] | None = None
    """Which of its NVLinks are up; empty for a GPU that has none."""
    nvlink_gb_s: float | None = None
    """What all its NVLinks carry together in one direction."""
    throttle: tuple[str, ...] | None = None
    """Why its clocks are lowered now, as the driver names it: `hw_slowdown`, `gpu_idle`, …"""
    utilization: int | None = None
    """Percent."""
    persistence: bool | None = None
    compute_mode: str = ""
    """`Default`, `Exclusive_Process` or `Prohibited`; empty for unknown."""
    inforom_corrupt: bool | None = None
    lost: str = ""
    """What the driver reports in place of its values: `GPU is lost`, …; empty if it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedGpu:
    """A GPU that the vendor's tool names, but cannot list."""

    address: str = ""
    """Its PCI address; empty if the tool does not print it."""
    why: str = ""
    """In the tool's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricManager:
    """The service that configures the NVSwitches, asked only where there are some."""

    state: str = ""
    """As systemd names it: `active`, `failed`, …; empty for unknown."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDriver:
    """What the kernel shows of NVIDIA's driver."""

    open_modules: bool | None = None
    """The kernel modules are the open ones, which export memory as DMA-BUF."""
    peermem: bool | None = None
    """`nvidia_peermem` is loaded."""
    fabric_manager: FabricManager | None = None
    imex: str = ""
    """The state of the IMEX service; empty for unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The accelerators that the vendor's tool lists."""

    tool: str = ""
    """The tool that was asked; empty if none is installed."""
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver can run."""
    devices: tuple[Gpu, ...] = ()
    unlisted: tuple[UnlistedGpu, ...] = ()
    on_bus: tuple[str, ...] = ()
    """The PCI addresses of the GPUs that the kernel's driver has, listed or not."""
    kernel: GpuDriver | None = None


VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""With this order CUDA counts GPUs as nvidia-smi does; CUDA's own order starts with the fastest."""

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")


def chosen_gpus(
    env: Mapping[str, str], env_from: Collection[str], gpus: Gpus | None
) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names; empty if there are none or it is uncertain.

    `env` wins over the node's own variables, the secrets named in `env_from` win over `env`.
    """
    words = env.get(VISIBLE, "").split(",")
    if {VISIBLE, ORDER} & set(env_from) or env.get(ORDER, BUS_ORDER) != BUS_ORDER:
        return ()
    devices = gpus.devices if gpus is not None and gpus.tool == "nvidia-smi" else ()
    by_uuid = {gpu.uuid: gpu for gpu in devices if _UUID.fullmatch(gpu.uuid) and not gpu.mig}
    if len(by_uuid) < len(devices) or list(devices) != sorted(devices, key=lambda gpu: gpu.bus_id):
        return ()
    by_index = {str(index): gpu for index, gpu in enumerate(devices)}
    names = by_index if all(map(_INDEX.fullmatch, words)) else by_uuid
    known = [names[word] for word in dict.fromkeys(words) if word in names]
    return tuple(known) if len(known) == len(words) else ()
