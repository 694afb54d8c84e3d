"""Whether the kernel log has errors of the GPUs, their NVLinks and their switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterctl.checks.accelerators import COUNT
from clusterctl.checks.finding import Finding, Status, finding, skip
from clusterctl.checks.planned import NVIDIA, planned_devices, reset_command
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import ago
from clusterctl.facts.gpu_log import GpuEvent, gpu_address, sxids, xids
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.values.accelerators import Gpu
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

RECOVERY = 154
"""Reports that the driver's request for a recovery changed; its text names the action."""
_REBOOT = "sudo reboot (on the node)"
_TEST = "dcgmi diag -r 3 (on the node) tests its GPUs"
_LOOK = "sudo dmesg | grep -i xid (on the node)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an Xid means, and what helps."""

    text: str
    status: Status = "fail"
    remedy: str = ""
    """Empty: a reset of the GPU."""


_NVLINK = "sudo nvidia-smi nvlink -e (on the node) counts its errors; reset all its GPUs, or reboot"
XIDS: Mapping[int, Meaning] = {
    46: Meaning(text="the GPU stopped processing"),
    48: Meaning(text="an uncorrectable memory error"),
    54: Meaning(text="its power cable is not connected", remedy="check the GPU's power cables"),
    61: Meaning(text="its power management firmware stopped"),
    62: Meaning(text="its power management firmware halted"),
    64: Meaning(text="a memory row could not be remapped"),
    74: Meaning(text="an NVLink error", remedy=_NVLINK),
    79: Meaning(text="the GPU fell off the bus", remedy=_REBOOT),
    92: Meaning(text="many corrected memory errors", status="warn", remedy=_TEST),
    94: Meaning(text="a memory error that ended one process", status="warn"),
    95: Meaning(text="a memory error that may reach all processes"),
    109: Meaning(text="a context switch timed out", status="warn"),
    110: Meaning(text="a security fault"),
    119: Meaning(text="the GPU's firmware (GSP) does not answer"),
    120: Meaning(text="an error of the GPU's firmware (GSP)"),
    121: Meaning(text="an error of the link to the CPU (C2C)", status="warn"),
    136: Meaning(text="an NVLink could not be trained", remedy=_NVLINK),
    140: Meaning(text="an uncorrectable memory error"),
    143: Meaning(text="the GPU could not be initialized"),
    **{n: Meaning(text="an NVLink error", remedy=_NVLINK) for n in (*range(144, 151), 155)},
    156: Meaning(text="a faulty part of the GPU was retired", status="warn"),
    157: Meaning(text="a faulty part of the GPU could not be retired"),
    158: Meaning(text="the GPU timed out"),
    167: Meaning(text="the PCIe link timed out", remedy=_REBOOT),
    171: Meaning(text="an uncorrectable memory error"),
    172: Meaning(text="an uncorrectable error of the SRAM"),
}  # fmt: skip
"""Number → meaning, after NVIDIA's Xid catalog; a reset or a reboot is what it asks for."""

OF_JOBS = frozenset(
    {
        8, 11, 13, 25, 31, 32, 37, 38, *range(39, 46), 60, 63, 65, 66, 67, 68, 69, *range(70, 74),
        75, 76, 77, 80, *range(82, 87), 88, 89, 93, *range(96, 109), *range(126, 136), 137, 139,
        141, 142, 152, 153, *range(159, 166), 170,
    }
)  # fmt: skip
"""Errors of a program, or notes that need no action: they say nothing about the next run."""


def _logs_errors(node: NodeFacts, cluster: Cluster) -> bool:
    nvidia = node.gpus is not None and node.gpus.tool == NVIDIA
    return nvidia and bool(planned_devices(node, cluster)) and node.kernel_log is not None


@Check(
    "accelerator.xid",
    title="the kernel log has no hardware error of a GPU (Xid)",
    why="NVIDIA's driver logs each fault with a number. Those of programs (13, 31, 43, 45) are no"
    " faults of the GPU. Since the last boot only; reading the log may need root.",
    fix="Do what the finding says for the number: reset the GPU, restart the node, or have it"
    " replaced.",
    source="https://docs.nvidia.com/deploy/xid-errors/index.html",
    explained_by=(COUNT,),
    applies=_logs_errors,
)
def xid(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge the newest line of each number of each planned GPU, and of GPUs that are lost."""
    for node in facts.values():
        devices = planned_devices(node, cluster)
        if not devices or node.gpus is None or node.gpus.tool != NVIDIA:
            continue
        if node.kernel_log is None:
            yield _cannot_read(node)
            continue
        listed = {gpu_address(gpu.bus_id) for gpu in node.gpus.devices}
        chosen = {gpu_address(gpu.bus_id): gpu for gpu in devices}
        for event in xids(node.kernel_log):
            # Of the GPUs that are not listed, any may have been one of those planned.
            if event.number not in OF_JOBS and (
                event.address in chosen or event.address not in listed
            ):
                yield from _xid(node, event, chosen.get(event.address))


def _xid(node: NodeFacts, event: GpuEvent, gpu: Gpu | None) -> Iterator[Finding]:
    sound = gpu is not None and gpu.asks_recovery is False
    meaning = XIDS.get(event.number, Meaning(text="an error", status="warn", remedy=_LOOK))
    if event.number == RECOVERY:
        if (gpu is not None and gpu.asks_recovery is not None) or not event.action:
            return  # the driver itself reports what it asks for now
        meaning = Meaning(
            text=f"the driver asks for: {event.action}",
            remedy=_REBOOT if "reboot" in event.action.lower() else "",
        )
    # A driver that asks for nothing has recovered the GPU since.
    status: Status = "warn" if sound or event.harmless else meaning.status
    where = "a GPU" if gpu is not None else f"the GPU at {event.address}"
    yield finding(
        status,
        node.node,
        f"the driver logged an error of {where}: {meaning.text}",
        wanted="no error of its hardware since boot",
        found=f"Xid {event.number}, {ago(event.age_s)}",
        remedy=_TEST
        if sound
        else meaning.remedy or (reset_command(node) if gpu is not None else _REBOOT),
        gpus=() if gpu is None else (gpu.index,),
    )


@Check(
    "accelerator.nvswitch",
    title="the kernel log has no error of an NVSwitch (SXid)",
    why="All traffic between the GPUs of a machine goes through its NVSwitches.",
    fix="Restart the fabric manager and the node. If the error returns, have the machine repaired.",
    source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    explained_by=(COUNT,),
    applies=_logs_errors,
)
def nvswitch(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the newest of each number; the driver itself tells which are fatal."""
    for node in facts.values():
        if not planned_devices(node, cluster) or node.gpus is None or node.gpus.tool != NVIDIA:
            continue
        if node.kernel_log is None:
            yield _cannot_read(node)
            continue
        for event in sxids(node.kernel_log):
            yield finding(
                "fail" if event.fatal else "warn",
                node.node,
                f"the driver logged an error of the NVSwitch at {event.address}",
                wanted="no error since boot",
                found=f"SXid {event.number}, {ago(event.age_s)}",
                remedy=_REBOOT if event.fatal else "sudo dmesg | grep SXid (on the node)",
            )


def _cannot_read(node: NodeFacts) -> Finding:
    why = node.why_unknown("kernel_log")
    return skip(node.node, f"cannot read the kernel log: {why}" if why else "no kernel log")
