"""Whether the GPUs report faults of their hardware, or run slower than their peers."""

import re
from collections.abc import Iterator
from statistics import median

from clusterctl.checks.finding import Finding, Status, fail, finding, skip, warn
from clusterctl.checks.gpu.accelerators import COUNT
from clusterctl.checks.gpu.lost_gpus import cards
from clusterctl.checks.gpu.planned import (
    NVIDIA,
    planned,
    planned_devices,
    reports,
    reset_command,
    usual_of_model,
)
from clusterctl.checks.gpu.xid_catalog import REBOOT
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.gpu.accelerators import Gpu, GpuClocks, GpuHeat, GpuMemory, GpuPower
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

HEALTH = "accelerator.health"
HOT_MARGIN_C = 5
HOTTER_C = 15
"""Above the median of idle GPUs of the same model."""
IDLE_PERCENT = 10
RETIRED_PAGES = 60
"""NVIDIA replaces GPUs with as many."""
_LAPTOP = re.compile(r"\b(Laptop|Max-Q|Mobile)\b")
_REPLACE = "exclude the node: --exclude {node}; its vendor replaces such a GPU"


@Check(
    HEALTH,
    title="no driver asks for a recovery of a GPU",
    why="A GPU that its driver wants to reset fails within a long run.",
    fix="Do what the driver asks for: reset the GPU, or restart the node.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    applies=reports(lambda gpu: gpu.asks_recovery),
)
def health(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report the action that the driver asks for."""
    asked: dict[tuple[str, str], list[Gpu]] = {}
    for node, gpu in planned(facts, cluster):
        if gpu.recovery_action:
            asked.setdefault((node.node, gpu.recovery_action), []).append(gpu)
    for (name, action), gpus in asked.items():
        yield fail(
            name,
            "the driver asks for a recovery of a GPU",
            wanted="no action",
            found=f"{action}: {cards(facts[name], (gpu.bus_id for gpu in gpus))}",
            remedy=REBOOT if "reboot" in action.lower() else reset_command(facts[name]),
            gpus=tuple(gpu.index for gpu in gpus),
        )


def _memory_reported(gpu: Gpu) -> bool | None:
    known = (gpu.ecc_uncorrected, gpu.remap_pending, gpu.memory and gpu.memory.remap_failure)
    return True if any(value is not None for value in known) else None


@Check(
    "accelerator.memory",
    title="the memory of the GPUs has no errors",
    why="Uncorrectable errors end a run, or give wrong results. A row that waits for a remap fails"
    " again.",
    fix="Reset the GPU, which remaps rows. If errors return, have it replaced.",
    source="https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
    explained_by=(COUNT,),
    applies=reports(_memory_reported),
)
def memory(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Report the worst of each planned GPU, unless the driver asks for a reset anyway."""
    complaint = _memory_complaint(gpu, gpu.memory or GpuMemory())
    if complaint is not None:
        found, broken = complaint
        if gpu.recovery_action and not broken:
            yield skip(node.node, "the driver asks for a recovery, which covers its memory")
            return
        yield fail(
            node.node,
            "the memory of a GPU is faulty",
            wanted="no errors",
            found=found,
            remedy=_REPLACE.format(node=node.node) if broken else reset_command(node),
            gpus=(gpu.index,),
        )


def _memory_complaint(gpu: Gpu, known: GpuMemory) -> tuple[str, bool] | None:
    """Return the worst that is wrong, and whether only a replacement helps."""
    errors = f"{gpu.ecc_uncorrected} uncorrectable memory errors since boot"
    complaints = (
        (known.remap_failure, "a memory row could not be remapped", True),
        (known.unrepairable, "unrepairable memory", True),
        (known.sram_threshold, "more SRAM errors than its vendor tolerates", True),
        (gpu.remap_pending, "memory rows are waiting to be remapped", False),
        (known.repair_pending, "a memory repair is waiting for a reset", False),
        (gpu.ecc_uncorrected, errors, False),
    )
    return next(((text, broken) for wrong, text, broken in complaints if wrong), None)


@Check(
    "accelerator.memory-history",
    title="the memory of the GPUs had no errors in the past",
    why="A GPU that had several uncorrectable errors, or many retired pages, is more likely to"
    " fail. A single error that was repaired is a note: in a large cluster some GPUs have one.",
    fix="Watch the GPU; have it replaced if the count grows.",
    source="https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
    explained_by=(COUNT, "accelerator.memory"),
    blocks=False,
    applies=reports(lambda gpu: gpu.memory and gpu.memory.uncorrected_ever),
)
def memory_history(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Report errors of the past that a reset has repaired."""
    known = gpu.memory or GpuMemory()
    pages = known.retired_pages or 0
    errors = known.uncorrected_ever or 0
    if pages < RETIRED_PAGES and not errors:
        return
    repaired = pages < RETIRED_PAGES and errors == 1
    yield finding(
        "pass" if repaired else "warn",
        node.node,
        "the memory of a GPU had an error in the past, which was repaired"
        if repaired
        else "the memory of a GPU had errors in the past",
        wanted="none",
        found=f"{pages} retired pages"
        if pages >= RETIRED_PAGES
        else f"{counted(errors, 'uncorrectable error')} in its life",
        remedy="nothing to do; watch whether the count grows"
        if repaired
        else "dcgmi diag -r 3 (on the node) tests it; exclude the node if that fails",
        gpus=(gpu.index,),
    )


@Check(
    "accelerator.ecc",
    title="error correction (ECC) is on, or off, on all GPUs of a model",
    why="ECC takes some memory, and without it errors of the memory are not noticed.",
    fix="Set it alike with `nvidia-smi -e 1`, and restart the node.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.memory and gpu.memory.ecc),
)
def ecc(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Name the GPUs without ECC where others of the model have it."""
    modes = usual_of_model(facts, cluster, lambda gpu: gpu.memory and gpu.memory.ecc)
    for node, gpu in planned(facts, cluster):
        if gpu.memory and gpu.memory.ecc is False and modes[gpu.name][True]:
            yield warn(
                node.node,
                "ECC is off on a GPU",
                wanted="on, as on the other GPUs",
                found="off",
                remedy="sudo nvidia-smi -i {gpus} -e 1 (on the node), then reboot it",
                gpus=(gpu.index,),
            )


_SLOWDOWNS: tuple[tuple[str, Status, str, str], ...] = (
    (
        "hw_thermal_slowdown",
        "fail",
        "it is too hot",
        "check its fans and its airflow",
    ),
    (
        "hw_power_brake_slowdown",
        "fail",
        "the power supply brakes it",
        "check the power supplies and cables of the node",
    ),
    (
        "hw_slowdown",
        "fail",
        "its hardware slows it down",
        "check its power supply and its cooling",
    ),
    (
        "sw_thermal_slowdown",
        "warn",
        "it is too hot, and its driver slows it down",
        "check its fans and its airflow",
    ),
)
"""The reasons that are faults, the most specific first. Idle clocks, limits that a user set and
the power limit under load are none."""


@Check(
    "accelerator.throttle",
    title="no fault slows a GPU down",
    why="Heat or a weak power supply can halve the clocks; all ranks wait for the slowest GPU.",
    fix="Check fans, airflow and the power supply of the node.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    applies=reports(lambda gpu: gpu.throttle),
)
def throttle(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Report the most specific reason of each GPU that is a fault."""
    active = gpu.throttle or ()
    for reason, status, what, remedy in _SLOWDOWNS:
        if reason in active:
            yield finding(
                status,
                node.node,
                "the clocks of a GPU are lowered: " + what,
                wanted="full clocks under load",
                found=reason,
                remedy=f"{remedy}; {_show_clocks(node)} (on the node)",
                gpus=(gpu.index,),
            )
            break


def _show_clocks(node: NodeFacts) -> str:
    if node.gpus is not None and node.gpus.tool != NVIDIA:
        return "amd-smi metric --throttle"
    return "nvidia-smi -q -d PERFORMANCE -i {gpus}"


def _judged_heat(gpu: Gpu) -> int | None:
    """Return the temperature of a GPU that tells its limit, or is idle as others are."""
    heat = gpu.heat or GpuHeat()
    return heat.celsius if heat.margin is not None or _is_idle(gpu) else None


def _is_idle(gpu: Gpu) -> bool:
    return gpu.utilization is not None and gpu.utilization < IDLE_PERCENT


@Check(
    "accelerator.temperature",
    title="the GPUs are cool enough",
    why="A GPU that is hot before the run slows down soon after its start.",
    fix="Check fans and airflow of the node, and what its neighbors in the rack do.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT, "accelerator.throttle"),
    blocks=False,
    applies=reports(_judged_heat),
)
def temperature(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge by the GPU's own limit, else compare idle GPUs of the same model."""
    idle: dict[str, list[int]] = {}
    for _, gpu in planned(facts, cluster):
        if gpu.heat and gpu.heat.celsius is not None and _is_idle(gpu):
            idle.setdefault(gpu.name, []).append(gpu.heat.celsius)
    for node, gpu in planned(facts, cluster):
        heat = gpu.heat or GpuHeat()
        usual = median(idle.get(gpu.name, [0]))
        if heat.celsius is None:
            continue
        if heat.margin is not None and heat.margin <= HOT_MARGIN_C:
            wanted = f"more than {HOT_MARGIN_C} degrees below its limit"
            found = f"{heat.celsius} C, it slows down at {heat.celsius + heat.margin} C"
        elif _is_idle(gpu) and heat.celsius > usual + HOTTER_C:
            wanted = f"about {usual:.0f} C, as idle GPUs of this model"
            found = f"{heat.celsius} C while idle"
        else:
            continue
        yield warn(
            node.node,
            "a GPU is hot",
            wanted=wanted,
            found=found,
            remedy="check the node's fans and airflow, and what runs on it",
            gpus=(gpu.index,),
        )


@Check(
    "accelerator.power",
    title="no GPU has a lower power limit than the others",
    why="A GPU with less power is slower, and all ranks wait for it. A limit that all GPUs of a"
    " model have is a note: their owner lowered it on purpose. The limit of a laptop's GPU moves"
    " by itself.",
    fix="Set the default with `nvidia-smi -pl WATTS`.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.power and gpu.power.limit),
)
def power(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare with the GPU's own default, and with the other GPUs of the model."""
    limits = usual_of_model(facts, cluster, lambda gpu: gpu.power and gpu.power.limit)
    for node, gpu in planned(facts, cluster):
        known = gpu.power or GpuPower()
        if known.limit is None or _LAPTOP.search(gpu.name):
            continue
        (usual, _), *_ = limits[gpu.name].most_common(1)
        assert isinstance(usual, float)
        wanted, whose = (
            (known.default_limit, "its default")
            if known.default_limit and known.limit < known.default_limit
            else (usual, "as on the other GPUs")
        )
        if known.limit < wanted:
            alike = len(limits[gpu.name]) == 1
            yield finding(
                "pass" if alike else "warn",
                node.node,
                "the power limit of a GPU is lowered" + (", as on all of its model" * alike),
                wanted=f"{wanted:.0f} W, {whose}",
                found=f"{known.limit:.0f} W",
                remedy=("nothing to do if that is wanted; else: " * alike)
                + _set_power(node, wanted),
                gpus=(gpu.index,),
            )


def _set_power(node: NodeFacts, watts: float) -> str:
    if node.gpus is not None and node.gpus.tool != NVIDIA:
        command = f"sudo amd-smi set -g N --power-cap {watts:.0f} (on the node)"
        return command + ", with N = {gpus} in turn"
    return f"sudo nvidia-smi -i {{gpus}} -pl {watts:.0f} (on the node)"


@Check(
    "accelerator.clocks",
    title="no user lowered the clocks of a GPU",
    why="A limit of the clocks stays until a reboot, and all ranks wait for the slowest GPU.",
    fix="Reset the clocks with `nvidia-smi -rgc` and `nvidia-smi -rac`.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.clocks and gpu.clocks.application and gpu.clocks.default),
)
def clocks(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Compare the application clock with the GPU's own default."""
    known = gpu.clocks or GpuClocks()
    if known.application and known.default and known.application < known.default:
        yield warn(
            node.node,
            "the clock of a GPU is limited",
            wanted=f"{known.default} MHz, its default",
            found=f"{known.application} MHz",
            remedy="sudo nvidia-smi -i {gpus} -rac (on the node)",
            gpus=(gpu.index,),
        )


@Check(
    "accelerator.inforom",
    title="the driver can read the GPUs' own records (infoROM)",
    why="It holds the settings of a GPU and the history of its errors.",
    fix="Restart the node. If it is still corrupt, have the GPU replaced.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.inforom_corrupt),
)
def inforom(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Report the driver's own warning."""
    for gpu in planned_devices(node, cluster):
        if gpu.inforom_corrupt:
            yield warn(
                node.node,
                "the infoROM of a GPU is corrupt",
                wanted="a readable one",
                found="nvidia-smi warns that it is corrupt",
                remedy=reset_command(node) + "; if it stays, its vendor rewrites it",
                gpus=(gpu.index,),
            )
