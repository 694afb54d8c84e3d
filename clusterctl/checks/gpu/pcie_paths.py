"""Whether GPUs without NVLink reach each other directly over PCIe."""

import re
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, skip, warn
from clusterctl.checks.gpu.accelerators import COUNT
from clusterctl.checks.gpu.planned import planned_devices
from clusterctl.checks.registry import Check
from clusterctl.checks.software.settings import settings_of
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

_NO_PEERS = "GeForce"
"""In the name of a GPU whose driver offers no direct access over PCIe."""
_SLOT = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_TRANSLATING = {"DMA", "DMA-FQ"}


def _by_pcie(node: NodeFacts, cluster: Cluster) -> bool:
    """Tell whether several GPUs have nothing but PCIe between them."""
    gpus = planned_devices(node, cluster)
    alone = not any(any(gpu.nvlinks or ()) or _NO_PEERS in gpu.name for gpu in gpus)
    return node.pcie_paths is not None and len(gpus) > 1 and alone


@Check(
    "accelerator.acs",
    title="GPUs without NVLink reach each other directly over PCIe",
    why="Access control (ACS) or the IOMMU may send what GPUs exchange up to the CPU. That costs"
    " half of the bandwidth or more. On some machines NCCL hangs in its first all-reduce.",
    fix="On a machine that hosts no virtual machines, turn ACS off in the BIOS, or boot Linux with"
    " pci=disable_acs_redir=SLOT;SLOT and iommu=pt.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=_by_pcie,
)
def acs(node: NodeFacts, network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge the bridges above the GPUs, and how the IOMMU treats them."""
    paths = node.pcie_paths
    if paths is None or not _by_pcie(node, cluster):
        return
    settings = {one.name: one.value for one in settings_of(node, network, cluster)}
    if settings.get("NCCL_P2P_DISABLE") == "1":
        return
    on = [one.slot for one in paths.bridges if one.redirects and _SLOT.fullmatch(one.slot)]
    if on:
        yield warn(
            node.node,
            "PCIe access control (ACS) sends what the GPUs exchange through the CPU",
            wanted="no ReqRedir and no CmpltRedir in the ACSCtl of the bridges above the GPUs",
            found=f"on {', '.join(on)}",
            remedy=f"for slot in {' '.join(on)}; do sudo setpci -s $slot ECAP_ACS+0x6.w=0000; done"
            f" (on the node, until it restarts); for good, boot with pci=disable_acs_redir="
            f"{';'.join(on)}, or turn ACS off in the BIOS",
        )
    if _TRANSLATING.intersection(paths.iommu):
        yield warn(
            node.node,
            "the IOMMU translates the addresses that the GPUs send each other",
            wanted="IOMMU groups of the type identity, or no IOMMU",
            found=f"type {', '.join(paths.iommu)}",
            remedy="add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then:"
            " sudo update-grub && sudo reboot (on the node)",
        )
    if any(one.redirects is None for one in paths.bridges):
        note = "only root can read whether PCIe access control (ACS) is on"
        yield skip(node.node, note, found="64 bytes of a bridge's configuration")
