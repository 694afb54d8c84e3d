"""Whether all GPUs answer their driver; those that do not, with their address and their Xid."""

from collections.abc import Iterable, Iterator

from clusterctl.checks.finding import Finding, Status, finding
from clusterctl.checks.gpu.planned import NVIDIA, planned_devices, reset_command
from clusterctl.checks.gpu.xid_catalog import LOOK, OF_JOBS, REBOOT, RECOVERY, XIDS
from clusterctl.checks.registry import Check
from clusterctl.checks.wording import ago
from clusterctl.facts.gpu.accelerators import Gpus
from clusterctl.facts.gpu.nvidia import pci_address
from clusterctl.facts.machine.kernel_log import FELL_OFF, GpuEvent, gpu_address, xids
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.values import dataclass

_ASK = {"nvidia-smi": "nvidia-smi -q", "amd-smi": "amd-smi static", "rocm-smi": "rocm-smi"}
_HOLD = (
    "sudo reboot (on the node) loads the new modules; then hold the driver's packages:"
    " sudo apt-mark hold 'nvidia-*' 'libnvidia-*', or sudo dnf versionlock add 'nvidia-*'"
)
_DETACHED = (
    "restart the container: `systemctl daemon-reload` on its machine took its GPUs away; to keep"
    " them, there: sudo nvidia-ctk system create-dev-char-symlinks --create-all, or"
    " native.cgroupdriver=cgroupfs for Docker"
)
_DENIED = (
    "systemctl show -p DevicePolicy,DeviceAllow user-$(id -u).slice (on the node) shows whether"
    " systemd denies this session the GPUs; Slurm denies those that the job did not request"
)


def known_cause(node: NodeFacts) -> tuple[str, str] | None:
    """Return what the words of nvidia-smi mean, and the remedy; None for other words."""
    why = node.why_unknown("gpus")
    if "version mismatch" in why:
        return "the loaded GPU driver and its libraries have different versions", _HOLD
    if "NVML: Unknown Error" in why:
        remedy = _DENIED if node.on_systemd else _DETACHED
        return "NVIDIA's driver refuses this session its GPUs", remedy
    return None


def cannot_list(node: NodeFacts, want: str) -> Finding:
    """Return the finding on a node whose tool failed or did not answer."""
    why = node.why_unknown("gpus") or "unknown"
    ask = _ASK.get(why.partition(":")[0], _ASK["nvidia-smi"])
    message, remedy = known_cause(node) or (
        "cannot list the accelerators",
        f"{ask} (on the node); reboot it if its driver was just updated",
    )
    status: Status = "fail" if "exit code" in why else "unknown"
    return finding(status, node.node, message, wanted=want, found=why, remedy=remedy)


LOST = "accelerator.lost"
_RESETTABLE = "requires reset"
_SILENCING = frozenset({79, 119, 120, 143, 158, 167})
"""Xids after which the driver may wait for a GPU; others may be old and of no consequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGpu:
    """A GPU that does not answer."""

    address: str
    """Its PCI address; empty if unknown."""
    why: str
    index: int | None = None
    """As the vendor's tool numbers it; None if it does not list the GPU."""


def lost_gpus(node: NodeFacts) -> tuple[LostGpu, ...]:
    """Return the GPUs of a node that do not answer, listed or not."""
    if node.gpus is None:
        return tuple(_behind_a_silent_tool(node))
    found = {
        gpu_address(gpu.bus_id): LostGpu(address=gpu.bus_id, why=gpu.lost, index=gpu.index)
        for gpu in node.gpus.devices
        if gpu.lost
    }
    for one in node.gpus.unlisted:
        found.setdefault(
            gpu_address(one.address), LostGpu(address=one.address, why=one.why or "not listed")
        )
    fell = {event.address for event in hardware_xids(node) if event.number == FELL_OFF}
    # A container or a batch system may show only some of the GPUs: not listed is not yet lost.
    for address in not_listed(node.gpus):
        if (short := gpu_address(address)) in fell:
            found.setdefault(short, LostGpu(address=address, why=f"{NVIDIA} does not list it"))
    return tuple(found.values())


def not_listed(gpus: Gpus) -> tuple[str, ...]:
    """Return the addresses of GPUs that the kernel's driver has, but the tool does not list."""
    listed = {pci_address(gpu.bus_id) for gpu in gpus.devices}
    return tuple(address for address in gpus.on_bus if address not in listed)


def _behind_a_silent_tool(node: NodeFacts) -> Iterator[LostGpu]:
    """Yield the GPUs whose logged error explains that nvidia-smi fails or hangs."""
    why = node.why_unknown("gpus")
    if why.startswith(NVIDIA) and known_cause(node) is None:
        silencing = (e.address for e in hardware_xids(node) if e.number in _SILENCING)
        for address in dict.fromkeys(silencing):
            yield LostGpu(address=address, why=why)


def hardware_xids(node: NodeFacts) -> list[GpuEvent]:
    """Return the faults of its GPUs that the kernel logged."""
    if node.kernel_log is None:
        return []
    return [
        event
        for event in xids(node.kernel_log)
        if event.number in XIDS and XIDS[event.number].status == "fail" and not event.harmless
    ]


def cards(node: NodeFacts, addresses: Iterable[str]) -> str:
    """Return the addresses of GPUs, and what the kernel logged of them."""
    known = [pci_address(address) for address in addresses if address]
    short = {gpu_address(address) for address in known}
    newest: dict[int, float | None] = {}
    for event in xids(node.kernel_log) if node.kernel_log is not None else ():
        if event.address in short and event.number not in OF_JOBS | {RECOVERY}:
            newest[event.number] = event.age_s
    logged = [f"Xid {number}, {ago(age)}" for number, age in newest.items()]
    return "; ".join([", ".join(known) or "of unknown address", *logged])


@Check(
    LOST,
    title="all GPUs answer their driver",
    why="A GPU that fell off the bus, or whose firmware stopped, takes its ranks along; often no"
    " program can use the other GPUs of the machine then.",
    fix="Restart the node. If the GPU is lost again, switch the machine off and on; then have the"
    " card reseated or replaced.",
    source="https://docs.nvidia.com/deploy/xid-errors/index.html",
    applies=lambda node, cluster: bool(planned_devices(node, cluster)),
)
def lost(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Report the GPUs of each node by what its driver says of them."""
    if cluster.node(node.node).gpus_wanted == 0 or not node.answered:
        return
    reasons: dict[str, list[LostGpu]] = {}
    for gpu in lost_gpus(node):
        reasons.setdefault(gpu.why, []).append(gpu)
    if not reasons and node.kernel_log is None and cluster.node(node.node).gpus_wanted is None:
        yield from _not_explained(node)
    planned = {gpu.index for gpu in planned_devices(node, cluster)}
    for why, same in reasons.items():
        listed = tuple(gpu.index for gpu in same if gpu.index is not None)
        # One that is not listed may be any of those that the run wants.
        needed = not listed or not planned.isdisjoint(listed)
        yield finding(
            "fail" if needed else "warn",
            node.node,
            "a GPU does not answer its driver",
            wanted="all GPUs answer",
            found=f"{why}: {cards(node, (gpu.address for gpu in same))}",
            remedy=_remedy(node, why, listed),
            gpus=listed,
        )


def _not_explained(node: NodeFacts) -> Iterator[Finding]:
    """Report GPUs that are not listed, if no log can tell that they are lost.

    A container sees all GPUs of its machine on the bus, and is often given a part of them.
    """
    others = not_listed(node.gpus) if node.gpus is not None and node.gpus.devices else ()
    if node.gpus is not None and others:
        yield finding(
            "unknown" if node.on_systemd else "pass",
            node.node,
            "the driver has GPUs that nvidia-smi does not list",
            wanted="a kernel log that tells whether they are lost",
            found=f"{', '.join(others)}; the log cannot be read",
            remedy=f"{LOOK}; if none is lost, set `gpus: {len(node.gpus.devices)}` for the node",
        )


def _remedy(node: NodeFacts, why: str, listed: tuple[int, ...]) -> str:
    last = f"exclude the node until then: --exclude {node.node}"
    look = "" if node.kernel_log is not None else f"; {LOOK} names the cause"
    if _RESETTABLE in why.lower() and listed:
        return f"{reset_command(node)}; if that fails: {REBOOT}; {last}{look}"
    return f"{REBOOT}; if it is lost again, have the card reseated or replaced; {last}{look}"
