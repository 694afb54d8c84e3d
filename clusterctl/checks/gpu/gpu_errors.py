"""Whether the kernel log has errors of the GPUs, their NVLinks and their switches."""

from collections.abc import Callable, Iterator

from clusterctl.checks.finding import Finding, Status, fail, finding, skip
from clusterctl.checks.gpu.accelerators import COUNT
from clusterctl.checks.gpu.lost_gpus import lost_gpus
from clusterctl.checks.gpu.planned import NVIDIA, planned_devices, reset_command
from clusterctl.checks.gpu.xid_catalog import LOOK, OF_JOBS, REBOOT, RECOVERY, TEST, XIDS, Meaning
from clusterctl.checks.registry import Check
from clusterctl.checks.wording import ago
from clusterctl.facts.gpu.accelerators import Gpu
from clusterctl.facts.machine.kernel_log import (
    GpuEvent,
    KernelLine,
    KernelLog,
    crashes,
    dead_switches,
    gpu_address,
    late_frees,
    peermem_errors,
    sxids,
    xids,
)
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

DAY_S = 86400


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
def xid(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the newest line of each number of each planned GPU, and of GPUs that are lost."""
    devices = planned_devices(node, cluster)
    if not devices or node.gpus is None or node.gpus.tool != NVIDIA:
        return
    if node.kernel_log is None:
        yield _unseen(node)
        return
    listed = {gpu_address(gpu.bus_id) for gpu in node.gpus.devices}
    lost = {gpu_address(gpu.address) for gpu in lost_gpus(node)}
    chosen = {gpu_address(gpu.bus_id): gpu for gpu in devices}
    for event in xids(node.kernel_log):
        # Of the GPUs that are not listed, any may have been one of those planned.
        if (
            event.number not in OF_JOBS
            and event.address not in lost
            and (event.address in chosen or event.address not in listed)
        ):
            yield from _xid(node, event, chosen.get(event.address))


def _xid(node: NodeFacts, event: GpuEvent, gpu: Gpu | None) -> Iterator[Finding]:
    sound = gpu is not None and gpu.asks_recovery is False
    meaning = XIDS.get(event.number, Meaning(text="an error", status="warn", remedy=LOOK))
    if event.number == RECOVERY:
        if (gpu is not None and gpu.asks_recovery is not None) or not event.action:
            return  # the driver itself reports what it asks for now
        meaning = Meaning(
            text=f"the driver asks for: {event.action}",
            remedy=REBOOT if "reboot" in event.action.lower() else "",
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
        remedy=TEST
        if sound
        else meaning.remedy or (reset_command(node) if gpu is not None else REBOOT),
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
def nvswitch(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Report the newest of each number; the driver itself tells which are fatal."""
    if not planned_devices(node, cluster) or node.gpus is None or node.gpus.tool != NVIDIA:
        return
    if node.kernel_log is None:
        yield _cannot_read(node)
        return
    for line in dead_switches(node.kernel_log):
        yield fail(
            node.node,
            "an NVSwitch could not be initialized",
            wanted="no error since boot",
            found=f"{line.text}, {ago(line.age_s)}",
            remedy=REBOOT,
        )
    for event in sxids(node.kernel_log):
        yield finding(
            "fail" if event.fatal else "warn",
            node.node,
            f"the driver logged an error of the NVSwitch at {event.address}",
            wanted="no error since boot",
            found=f"SXid {event.number}, {ago(event.age_s)}",
            remedy=REBOOT if event.fatal else "sudo dmesg | grep SXid (on the node)",
        )


_COMPARE = (
    "clusterctl check --only python.nccl compares its versions; set NCCL_DEBUG=INFO in `job.env`"
    " for its last words"
)
_RELOAD = "sudo modprobe -r nvidia-peermem && sudo modprobe nvidia-peermem (on the node, idle)"
_KINDS: tuple[tuple[Callable[[KernelLog], Iterator[KernelLine]], Status, str, str], ...] = (
    (crashes, "warn", "a process crashed in NCCL", _COMPARE),
    (peermem_errors, "warn", "nvidia-peermem reported an error", _RELOAD),
    (
        late_frees,
        "pass",
        "nvidia-peermem freed memory of a process that had ended",
        "nothing to do: a killed job leaves such a line",
    ),
)
"""How the lines are found, the status, the message and the remedy."""


@Check(
    "accelerator.log",
    title="the kernel log has no crash in NCCL and no error of nvidia-peermem",
    why="A rank that crashed in NCCL prints no error of its own. Nor does a network card that lost"
    " the memory of a GPU. The last day only.",
    fix="Compare the versions of NCCL. Reload nvidia-peermem, or use the open kernel modules of the"
    " driver, which need no such module.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=_logs_errors,
)
def log(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Report the newest line of each kind."""
    if not planned_devices(node, cluster) or node.gpus is None or node.gpus.tool != NVIDIA:
        return
    if node.kernel_log is None:
        yield _cannot_read(node)
        return
    for kind, status, message, remedy in _KINDS:
        recent = [line for line in kind(node.kernel_log) if (line.age_s or 0) < DAY_S]
        if recent:
            yield finding(
                status,
                node.node,
                message,
                wanted="none on the last day",
                found=f"{recent[-1].text}, {ago(recent[-1].age_s)}",
                remedy=remedy,
            )


def _unseen(node: NodeFacts) -> Finding:
    """Return a note: most users may not read the log, and must not take that for a pass."""
    why = node.why_unknown("kernel_log") or "not read"
    remedy = "sudo dmesg on the machine of this container can"
    if node.on_systemd:
        remedy = "sudo usermod -aG systemd-journal $USER (on the node) lets you read it"
    message = f"errors of GPUs (Xid) are not seen: your user cannot read the kernel log; {remedy}"
    return skip(node.node, message, wanted="a kernel log to read", found=why, remedy=remedy)


def _cannot_read(node: NodeFacts) -> Finding:
    why = node.why_unknown("kernel_log")
    return skip(node.node, f"cannot read the kernel log: {why}" if why else "no kernel log")
