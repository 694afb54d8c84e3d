"""Whether other processes use the accelerators that the job needs."""

import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, skip, warn
from clusterctl.checks.gpu.accelerators import COUNT
from clusterctl.checks.gpu.planned import NVIDIA, planned_devices, uses_gpus
from clusterctl.checks.registry import Check
from clusterctl.facts.gpu.accelerators import Gpu, GpuProcess
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

FULL_LOAD = 99
"""Percent."""
BUSY_MIB = 1024
"""A driver and a desktop use less."""


@Check(
    "accelerator.busy",
    title="no other process uses the accelerators",
    why="GPU memory that another process holds is not available to your model.",
    fix="End the process if it is yours; else ask its owner or take other nodes.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT, "node.busy"),
    blocks=False,
    applies=uses_gpus,
)
def busy(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Name the processes that hold more memory than a driver or a desktop."""
    planned = tuple(gpu for gpu in planned_devices(node, cluster) if not gpu.lost)
    yield from _working_for_nobody(node, planned)
    held = [gpu for gpu in planned if _is_held(gpu)]
    if not held:
        if any(gpu.used_mib is None and not gpu.mig for gpu in planned):
            tool = (node.gpus.tool if node.gpus else "") or "the driver"
            yield skip(node.node, f"{tool} does not report how much of its GPUs' memory is in use")
        return
    users = [p for gpu in held for p in gpu.processes or ()]
    numbers = ", ".join(str(gpu.index) for gpu in held)
    yield warn(
        node.node,
        f"memory of GPU {numbers} is in use",
        wanted=f"less than {BUSY_MIB} MiB each",
        found=f"up to {max(g.used_mib or 0 for g in held)} MiB by "
        + (", ".join(sorted({_named(p) for p in users})) or "no visible process"),
        remedy=_end(node, users),
    )


def _named(process: GpuProcess) -> str:
    whose = f" of {process.user}" if process.user else ""
    return f"{process.name or 'a process'}{whose} (pid {process.pid})"


def _end(node: NodeFacts, users: list[GpuProcess]) -> str:
    """Return what ends these processes: the user's own by a command, others by their owners."""
    own = sorted({p.pid for p in users if p.user and p.user == node.user and p.pid > 0})
    others = sorted({p.user for p in users if p.user and p.user != node.user})
    parts = []
    if own:
        parts.append(f"kill {' '.join(map(str, own))} (on the node) ends yours")
    if others:
        parts.append(f"ask {shlex.join(others)} to end theirs")
    show = "amd-smi process" if node.gpus and node.gpus.tool == "amd-smi" else NVIDIA
    return "; ".join(parts) or f"{show} (on the node) shows the process; end it if it is yours"


def _working_for_nobody(node: NodeFacts, devices: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Find GPUs at full load without a process; `_is_held` finds those with memory in use.

    Without persistence mode the driver has just been loaded: then it scrubs the memory, which
    nvidia-smi shows as load (its manual).
    """
    for gpu in devices:
        works = gpu.utilization is not None and gpu.utilization >= FULL_LOAD
        if works and gpu.processes == () and gpu.persistence and not _is_held(gpu):
            yield warn(
                node.node,
                "a GPU works, but no process uses it",
                wanted="an idle GPU",
                found=f"{gpu.utilization} % load without a process",
                remedy="a kernel of an ended job may hang, or another container uses it; look"
                " there first, then: sudo nvidia-smi --gpu-reset -i {gpus} (on the node)",
                gpus=(gpu.index,),
            )


def _is_held(gpu: Gpu) -> bool:
    return gpu.used_mib is not None and gpu.used_mib > BUSY_MIB and not gpu.mig
