"""Whether the GPUs reach their machine, each other and the network at full speed."""

import re
from collections.abc import Iterator
from statistics import median

from clusterctl.checks.finding import Finding, Status, fail, finding, skip, warn
from clusterctl.checks.gpu.accelerators import COUNT
from clusterctl.checks.gpu.planned import (
    NVIDIA,
    highest_of_model,
    planned,
    planned_devices,
    reports,
    reset_command,
    uses_gpus,
)
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.gpu.accelerators import Gpu, GpuFabric, PcieLink
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

_SEAT = "reseat the GPU or its riser, and check the slot's settings in the BIOS"
_NO_CLUSTER = re.compile(r"[0-]*")
_KERNEL = re.compile(r"(\d+)\.(\d+)")
_DMA_BUF = (5, 12)
"""The first Linux that lets a network card read a GPU's memory without nvidia_peermem."""
_MOST_PARENTS = 3
"""Such as a VLAN on a bond, on a card."""
_MANAGER = "nvidia-fabricmanager"
_RESTART = (
    f"sudo systemctl restart {_MANAGER} (on the node, without a run); sudo journalctl -u {_MANAGER}"
)
_BROKEN = ("unhealthy", "incorrect configuration")
"""Words of a fabric's health for what no recovery repairs; the others make it slower."""
MANY_REPAIRED = 1000
REPAIRED_RATIO = 10
"""Above the median of all planned GPUs."""


@Check(
    "accelerator.pcie",
    title="each GPU has its full PCIe link",
    why="A link with fewer lanes, or of an older generation, slows down what the CPU and the"
    " network exchange with the GPU. Idle GPUs slow their links down; that is no fault.",
    fix="Restart the node; if the link stays narrow or slow, reseat the card or check its riser.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.link and gpu.link.width),
)
def pcie(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the lanes with those of the model's other GPUs; the generation as far as it goes."""
    widest = highest_of_model(facts, cluster, lambda gpu: (gpu.link or PcieLink()).width)
    newest = highest_of_model(facts, cluster, lambda gpu: (gpu.link or PcieLink()).max_generation)
    for node, gpu in planned(facts, cluster):
        link = gpu.link or PcieLink()
        complaint = _narrow(link, widest[gpu.name]) or _old(gpu, link, newest[gpu.name])
        if complaint is not None:
            wanted, found = complaint
            yield warn(
                node.node,
                "the PCIe link of a GPU is slow",
                wanted=wanted,
                found=found,
                remedy=f"{_SEAT}; exclude the node until then: --exclude {node.node}",
                gpus=(gpu.index,),
            )


def _narrow(link: PcieLink, widest: int) -> tuple[str, str] | None:
    """Return a complaint about the lanes; clouds wire slots of some models with half of them."""
    if link.width is None:
        return None
    if link.width < widest:
        return f"{widest} lanes, as other GPUs of this model", counted(link.width, "lane")
    if link.max_width is not None and link.width * 2 < link.max_width:
        return f"{link.max_width} lanes", counted(link.width, "lane")
    return None


def _old(gpu: Gpu, link: PcieLink, newest: int) -> tuple[str, str] | None:
    """Return a complaint about the generation; that of the moment counts while the GPU works."""
    if link.max_generation is not None and link.max_generation < newest:
        return (
            f"generation {newest}, as other GPUs of this model",
            f"at most generation {link.max_generation}",
        )
    works = gpu.throttle is not None and "gpu_idle" not in gpu.throttle and bool(gpu.utilization)
    if works and link.generation and link.max_generation and link.generation < link.max_generation:
        return f"generation {link.max_generation}", f"generation {link.generation} under load"
    return None


@Check(
    "accelerator.pcie-errors",
    title="the PCIe links of the GPUs had no fatal errors, and few that they repaired",
    why="After a fatal error of its link, a GPU often falls off the bus. Each error that the link"
    " repairs costs time; thousands come from a bad contact.",
    fix="Reseat the card or check its riser, and look in the kernel log for AER.",
    source="https://docs.kernel.org/PCI/pcieaer-howto.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.link and gpu.link.fatal),
)
def pcie_errors(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report the kernel's counters since boot; of repaired errors, those far above the others'."""
    counts = [g.link.correctable or 0 for _, g in planned(facts, cluster) if g.link]
    usual = median(counts) if counts else 0
    for node, gpu in planned(facts, cluster):
        repaired = (gpu.link.correctable if gpu.link else None) or 0
        if repaired >= max(MANY_REPAIRED, REPAIRED_RATIO * usual):
            yield warn(
                node.node,
                "the PCIe link of a GPU repairs many errors",
                wanted=f"about {usual:.0f} since boot, as on most GPUs",
                found=f"{repaired} corrected errors",
                remedy=f"sudo dmesg | grep AER (on the node); {_SEAT}",
                gpus=(gpu.index,),
            )
        if gpu.link and gpu.link.fatal:
            yield warn(
                node.node,
                "the PCIe link of a GPU had fatal errors",
                wanted="none since boot",
                found=counted(gpu.link.fatal, "fatal error"),
                remedy=f"sudo dmesg | grep AER (on the node); {_SEAT}",
                gpus=(gpu.index,),
            )


def _links_up(gpu: Gpu) -> int | None:
    """Return how many NVLinks are up; None for a GPU without, or of which that is unknown."""
    return sum(gpu.nvlinks) if gpu.nvlinks else None


@Check(
    "accelerator.nvlink",
    title="all NVLinks between the GPUs are up",
    why="Without them GPUs of a node exchange gradients by PCIe, ten times slower.",
    fix="Restart the fabric manager, then the node. If links stay inactive, have the machine"
    " repaired.",
    source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    explained_by=(COUNT,),
    applies=reports(_links_up),
)
def nvlink(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare with the GPU of the same model that has most links; a GPU may have none at all."""
    highest = highest_of_model(facts, cluster, _links_up)
    for node, gpu in planned(facts, cluster):
        most = highest[gpu.name]
        up = sum(gpu.nvlinks) if gpu.nvlinks is not None else most
        if up < most:
            yield finding(
                "warn" if up else "fail",
                node.node,
                "a GPU has fewer NVLinks than others of its model"
                if up
                else "the NVLinks of a GPU are down",
                wanted=f"{counted(most, 'link')} up",
                found=f"{up} up",
                remedy=f"nvidia-smi nvlink -s -i {{gpus}} shows them; {reset_command(node)}",
                gpus=(gpu.index,),
            )


@Check(
    "accelerator.fabric",
    title="the GPUs have joined their NVSwitch fabric",
    why="Behind NVSwitches, CUDA does not start before the fabric manager has configured them:"
    " `CUDA error 802: system not yet initialized`.",
    fix="Start nvidia-fabricmanager, in the same version as the driver.",
    source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    explained_by=(COUNT,),
    applies=lambda node, cluster: bool(_fabric_node(node) and planned_devices(node, cluster)),
)
def fabric(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Report each GPU that has not joined; then what the fabric manager itself reports."""
    devices = planned_devices(node, cluster)
    if not devices or not _fabric_node(node):
        return
    found = [one for gpu in devices for one in _not_joined(node, gpu)]
    yield from found
    manager = node.gpu_driver.fabric_manager
    version = node.gpus.driver if node.gpus else ""
    if manager is not None and manager.version and manager.version != version:
        yield fail(
            node.node,
            "the fabric manager has another version than the driver",
            wanted=version,
            found=manager.version,
            remedy="install the package nvidia-fabricmanager of the driver's version on the"
            f" node, then: sudo systemctl restart {_MANAGER}",
        )
    elif manager is not None and manager.state != "active" and not found:
        joined = any(gpu.fabric and gpu.fabric.state == "Completed" for gpu in devices)
        yield finding(
            "warn" if joined else "fail",  # a container does not run it, its machine does
            node.node,
            "the fabric manager is not running",
            wanted="active",
            found=manager.state,
            remedy=f"sudo systemctl enable --now {_MANAGER} (on the node)",
        )


def _fabric_node(node: NodeFacts) -> bool:
    """Return whether the node has NVSwitches; older drivers do not report it for each GPU."""
    if node.gpus is None or node.gpus.tool != NVIDIA:
        return False
    states = {gpu.fabric.state for gpu in node.gpus.devices if gpu.fabric}
    return node.gpu_driver.fabric_manager is not None or bool(states - {"", "Not Supported"})


def _not_joined(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    known = gpu.fabric or GpuFabric()
    if gpu.lost:
        return
    success = known.status in {"", "Success"}
    if known.state in {"", "Not Supported"} or (
        known.state == "Completed" and success and not known.unhealthy
    ):
        return
    joined = known.state == "Completed" and success
    broken = any(word in known.unhealthy.lower() for word in _BROKEN)
    status: Status = "warn" if joined and not broken else "fail"
    yield finding(
        status,
        node.node,
        f"the NVSwitch fabric of a GPU is {'broken' if broken else 'degraded'}"
        if joined
        else "a GPU has not joined its NVSwitch fabric",
        wanted="a healthy fabric" if joined else "state Completed, status Success",
        found=known.unhealthy if joined else f"state {known.state}, status {known.status or '?'}",
        remedy=_mend(node, known) if joined else _RESTART,
        gpus=(gpu.index,),
    )


def _mend(node: NodeFacts, known: GpuFabric) -> str:
    """Return what helps a fabric that a GPU has joined; in a rack no node manages it."""
    if "recovery" in known.unhealthy:
        return "wait a minute, then: clusterctl check --only accelerator.fabric"
    if any(word in known.unhealthy.lower() for word in _BROKEN):
        return (
            f"sudo journalctl -u {_MANAGER} (on the node), or in a rack the log of its fabric"
            f" manager (NMX-C); exclude the node until then: --exclude {node.node}"
        )
    return _RESTART


@Check(
    "accelerator.imex",
    title="IMEX runs where NVLink connects machines",
    why="GPUs of several machines share memory over NVLink only with it.",
    fix="Start nvidia-imex on all nodes of the NVLink domain.",
    source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=lambda node, cluster: bool(_in_nvlink_cluster(node, cluster) and node.gpu_driver.imex),
)
def imex(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes whose GPUs belong to such a fabric."""
    state = node.gpu_driver.imex
    if state not in {"", "active"} and _in_nvlink_cluster(node, cluster):
        yield warn(
            node.node,
            "IMEX is not running",
            wanted="active",
            found=state,
            remedy="sudo systemctl enable --now nvidia-imex (on the node)",
        )


def _in_nvlink_cluster(node: NodeFacts, cluster: Cluster) -> bool:
    known = (gpu.fabric.cluster for gpu in planned_devices(node, cluster) if gpu.fabric)
    return any(not _NO_CLUSTER.fullmatch(uuid) for uuid in known)


def _rdma_active(node: NodeFacts, cluster: Cluster) -> bool:
    driver = node.gpus.kernel if node.gpus else None
    active = any(port.active for port in node.rdma or ())
    return active and driver is not None and uses_gpus(node, cluster)


@Check(
    "accelerator.gpudirect",
    title="RDMA cards reach the GPUs' memory directly (GPUDirect)",
    why="Otherwise NCCL copies everything through the CPU's memory, at half the speed or less.",
    fix="Load nvidia-peermem, or use the open kernel modules of the driver, which need no such"
    " module.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=_rdma_active,
)
def gpudirect(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes with an active RDMA port: one of two ways must be open."""
    driver = node.gpu_driver
    if not _rdma_active(node, cluster) or driver.peermem:
        return
    kernel = _KERNEL.match(node.kernel or "")
    new = kernel is not None and (int(kernel[1]), int(kernel[2])) >= _DMA_BUF
    if driver.open_modules and new:
        return
    yield warn(
        node.node,
        "NCCL cannot use GPUDirect RDMA",
        wanted="the module nvidia_peermem, or the open kernel modules of the driver",
        found=f"no nvidia_peermem; {'open' if driver.open_modules else 'closed'} modules,"
        f" Linux {node.kernel or 'of an unknown version'}",
        remedy="sudo modprobe nvidia-peermem (on the node)",
    )


def _across(node: NodeFacts, network: Network, cluster: Cluster) -> bool | None:
    """Return whether the chosen interface is on another NUMA node than all GPUs."""
    chosen = network.nodes.get(node.node)
    interface = node.interface(chosen.interface) if chosen else None
    for _ in range(_MOST_PARENTS):
        if interface is not None and interface.numa is None:
            interface = node.interface(interface.parent)
    places = {gpu.link.numa for gpu in planned_devices(node, cluster) if gpu.link} - {None}
    if interface is None or interface.numa is None or not places:
        return None
    return interface.numa not in places


def _places_known(node: NodeFacts, cluster: Cluster) -> bool:
    links = [gpu.link for gpu in planned_devices(node, cluster) if gpu.link]
    cards = any(each.numa is not None for each in node.interfaces or ())
    return cards and any(link.numa is not None for link in links)


@Check(
    "accelerator.numa",
    title="the network card is as near to the GPUs as on the other nodes",
    why="All traffic would cross the link between the CPU sockets.",
    fix="Use the network card on the GPUs' side of the machine: `network: {subnet: ...}` or"
    " NCCL_IB_HCA.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    explained_by=(COUNT, "network.subnet"),
    blocks=False,
    applies=_places_known,
)
def numa(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the nodes whose card is on the other socket while that of another node is not."""
    across = {node.node: _across(node, network, cluster) for node in facts.values()}
    for name, node in facts.items():
        if across[name] is None and _places_known(node, cluster):
            yield skip(name, "the CPU socket of its network card is unknown")
    if False not in across.values():
        return
    for name, crosses in across.items():
        if crosses:
            interface = network.nodes[name].interface
            yield warn(
                name,
                "the network card is on another CPU socket than the GPUs",
                wanted="the NUMA node of a GPU, as on the other nodes",
                found=f"{interface} is on another one",
                remedy="move the card to a slot of the GPUs' socket, or name another subnet:"
                " `network: {subnet: ...}` in hosts.yaml",
            )
