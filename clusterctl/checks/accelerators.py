"""Whether the accelerators that the job needs are present, equal and free."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, Status, fail, finding, passed, skip, warn
from clusterctl.checks.lost_gpus import LOST
from clusterctl.checks.planned import (
    NVIDIA,
    planned,
    planned_devices,
    reports,
    uses_gpus,
    usual_of_model,
)
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.gpuset import BUS_ORDER, ORDER, VISIBLE
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.nvidia import pci_address
from clusterctl.facts.values.accelerators import Gpu, GpuProcess, Gpus
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

FULL_LOAD = 99
"""Percent."""
BUSY_MIB = 1024
"""A driver and a desktop use less."""

_ASK = {"nvidia-smi": "nvidia-smi -q", "amd-smi": "amd-smi static", "rocm-smi": "rocm-smi"}

COUNT = "accelerator.count"


@Check(
    COUNT,
    title="every node has the accelerators that the job needs",
    why="A rank without its GPU cannot start, and the whole run fails.",
    fix="If a GPU is missing, look for Xid 79 in the kernel log and restart the node. If the"
    " driver does not answer, load or install it.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(LOST,),
    applies=lambda node, cluster: cluster.node(node.node).gpus_wanted != 0,
)
def count(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare what the vendor's tool lists with the inventory."""
    for node in facts.values():
        wanted = cluster.node(node.node).gpus_wanted
        if wanted == 0 or not node.answered:
            continue
        want = "at least one" if wanted is None else str(wanted)
        if node.gpus is None:
            yield _cannot_list(node, want)
        elif not node.gpus.devices:
            tool = node.gpus.tool
            yield fail(
                node.node,
                "no accelerator found",
                wanted=want,
                found=f"{tool} lists none" if tool else "no nvidia-smi, amd-smi or rocm-smi",
                remedy="install its driver, or for CPUs set `defaults: {gpus: 0}` in hosts.yaml",
            )
        elif wanted is not None and len(node.gpus.devices) < wanted:
            found = len(node.gpus.devices)
            yield fail(
                node.node,
                "accelerators are missing",
                wanted=want,
                found=f"{found} x {node.gpus.devices[0].name}" + _not_listed(node.gpus),
                remedy=f"sudo dmesg | grep -i xid (on the node), or set `gpus: {found}` for it",
            )


_HOLD = (
    "sudo reboot (on the node) loads the new modules; then hold the driver's packages:"
    " sudo apt-mark hold 'nvidia-*' 'libnvidia-*', or sudo dnf versionlock add 'nvidia-*'"
)
_DETACHED = (
    "restart the container: `systemctl daemon-reload` on its machine took its GPUs away; to keep"
    " them, there: sudo nvidia-ctk system create-dev-char-symlinks --create-all, or"
    " native.cgroupdriver=cgroupfs for Docker"
)
_FAILURES = (
    (
        "version mismatch",
        "the loaded GPU driver and its libraries have different versions",
        _HOLD,
    ),
    ("NVML: Unknown Error", "NVIDIA's driver refuses this session its GPUs", _DETACHED),
)
"""Words of nvidia-smi, what they mean, and the remedy."""


def _cannot_list(node: NodeFacts, want: str) -> Finding:
    why = node.why_unknown("gpus") or "unknown"
    ask = _ASK.get(why.partition(":")[0], _ASK["nvidia-smi"])
    message, remedy = next(
        ((message, remedy) for words, message, remedy in _FAILURES if words in why),
        (
            "cannot list the accelerators",
            f"{ask} (on the node); reboot it if its driver was just updated",
        ),
    )
    status: Status = "fail" if "exit code" in why else "unknown"
    return finding(status, node.node, message, wanted=want, found=why, remedy=remedy)


def _not_listed(gpus: Gpus) -> str:
    """Return the GPUs that the kernel's driver has, but the tool does not list."""
    listed = {pci_address(gpu.bus_id) for gpu in gpus.devices}
    others = [address for address in gpus.on_bus if address not in listed]
    return f"; the driver has {', '.join(others)}, too" if others else ""


@Check(
    "accelerator.same",
    title="all accelerators are the same model",
    why="The slowest GPU sets the pace of every step; the smallest memory limits the batch size.",
    fix="Take nodes of one model, or `gpus: N` so that a node uses equal ones.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=uses_gpus,
)
def same(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each model with the most frequent one."""
    models = {
        node.node: [gpu.name for gpu in planned_devices(node, cluster)] for node in facts.values()
    }
    frequent = Counter(name for names in models.values() for name in names).most_common(1)
    for name, found in models.items():
        others = sorted(set(found) - {model for model, _ in frequent})
        if others:
            yield warn(
                name,
                "its accelerators are another model than on the other nodes"
                if len(set(found)) == 1
                else "it has accelerators of several models",
                wanted=frequent[0][0],
                found=", ".join(sorted(set(found))),
                remedy=f"exclude it: --exclude {name}"
                if len(set(found)) == 1
                else "set `gpus: N` so that the first N are one model",
            )


def _not_reported(node: NodeFacts, what: str) -> Finding:
    tool = node.gpus.tool if node.gpus else ""
    message = f"{tool or 'the driver'} does not report {what}"
    return skip(node.node, message)


_all_have_uuids = reports(lambda gpu: gpu.uuid or None)


@Check(
    "accelerator.twice",
    title="each GPU belongs to one node",
    why="Two containers that share a GPU share its memory, and NCCL refuses such a pair of ranks.",
    fix="Give each container its own GPUs, or remove one of the nodes.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    explained_by=(COUNT, "node.same-machine"),
    applies=lambda node, cluster: not cluster.same_machine and _all_have_uuids(node, cluster),
)
def twice(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the UUIDs of the planned GPUs."""
    if cluster.same_machine:
        return
    seen: dict[str, list[tuple[str, int]]] = {}
    for node, gpu in planned(facts, cluster):
        if gpu.uuid:
            seen.setdefault(gpu.uuid, []).append((node.node, gpu.index))
    for places in seen.values():
        nodes = tuple(dict.fromkeys(name for name, _ in places))
        if len(nodes) > 1:
            yield fail(
                nodes,
                "these nodes have the same GPU",
                wanted="a GPU of its own for each rank",
                found=", ".join(f"GPU {index} of {name}" for name, index in places),
                remedy=f"exclude all but one: --exclude {nodes[-1]};"
                " or give each container GPUs of its own",
            )


@Check(
    "accelerator.driver",
    title="all nodes have the same GPU driver",
    why="Versions of the driver differ in speed and in faults, and NCCL is tested with equal ones.",
    fix="Install the same version of the driver on all nodes.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=lambda node, cluster: bool(node.gpus and node.gpus.driver) and uses_gpus(node, cluster),
)
def driver(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each version with the most frequent one of the same tool."""
    versions = {
        node.node: (node.gpus.tool, node.gpus.driver)
        for node in facts.values()
        if node.gpus and node.gpus.driver and uses_gpus(node, cluster)
    }
    usual: dict[str, str] = {}
    for (tool, version), _ in Counter(versions.values()).most_common():
        usual.setdefault(tool, version)
    for name, (tool, version) in versions.items():
        if version != usual[tool]:
            yield warn(
                name,
                "another version of the GPU driver than on the other nodes",
                wanted=usual[tool],
                found=version,
                remedy=f"install the driver {shlex.quote(usual[tool])} on the node and reboot it",
            )


@Check(
    "accelerator.vbios",
    title="all GPUs of a model have the same VBIOS",
    why="The VBIOS holds a GPU's limits of power and clocks. GPUs that were bought at different"
    " times often have different ones, which is no fault: this is a note.",
    fix="Update the firmware of the odd GPUs with the vendor's tool.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.vbios or None),
)
def vbios(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each version with the most frequent one of the model."""
    versions = usual_of_model(facts, cluster, lambda gpu: gpu.vbios or None)
    for node, gpu in planned(facts, cluster):
        if not gpu.vbios:
            continue
        usual = str(versions[gpu.name].most_common(1)[0][0])
        if gpu.vbios != usual:
            yield passed(
                node.node,
                "another VBIOS than on the other GPUs of this model, as in a mixed purchase",
                wanted=usual,
                found=gpu.vbios,
                remedy="nothing to do; if these GPUs are slower, ask the vendor for an update",
                gpus=(gpu.index,),
            )


@Check(
    "accelerator.mig",
    title="no GPU is partitioned (MIG)",
    why="A rank would get a part of a GPU, and NCCL does not connect such parts.",
    fix="Turn MIG off with `nvidia-smi -mig 0`, with no program on the GPU.",
    source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html",
    explained_by=(COUNT,),
    applies=reports(lambda gpu: gpu.mig),
)
def mig(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the partitioned GPUs."""
    for node, gpu in planned(facts, cluster):
        if gpu.mig:
            yield fail(
                node.node,
                "a GPU is partitioned (MIG)",
                wanted="a whole GPU for each rank",
                found="MIG mode is on",
                remedy="sudo nvidia-smi -i {gpus} -mig 0 (on the node)",
                gpus=(gpu.index,),
            )


@Check(
    "accelerator.compute-mode",
    title="programs may use the GPUs, more than one at a time",
    why="A GPU in another mode refuses all programs, or all but the first.",
    fix="Set it to default with `nvidia-smi -c 0`.",
    source="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    explained_by=(COUNT,),
    applies=reports(lambda gpu: gpu.compute_mode or None),
)
def compute_mode(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the GPUs that are not in the default mode."""
    for node, gpu in planned(facts, cluster):
        if gpu.compute_mode in {"", "Default"}:
            continue
        prohibited = gpu.compute_mode == "Prohibited"
        yield finding(
            "fail" if prohibited else "warn",
            node.node,
            "the compute mode of a GPU refuses "
            + ("all programs" if prohibited else "a second program"),
            wanted="compute mode Default",
            found=gpu.compute_mode,
            remedy="sudo nvidia-smi -i {gpus} -c DEFAULT (on the node)",
            gpus=(gpu.index,),
        )


@Check(
    "accelerator.persistence",
    title="the driver stays loaded (persistence mode) on all nodes or on none",
    why="Without it each start of a program initializes the GPUs, 1-3 s for each, and settings of"
    " them are lost. A run keeps them initialized itself. If only some nodes lack it, their"
    " nvidia-persistenced has often failed.",
    fix="Enable nvidia-persistenced, or run `nvidia-smi -pm 1`.",
    source="https://docs.nvidia.com/deploy/driver-persistence/index.html",
    explained_by=(COUNT,),
    blocks=False,
    applies=reports(lambda gpu: gpu.persistence),
)
def persistence(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the GPUs without it where others have it; else it costs a run's start seconds."""
    modes = {gpu.persistence for _, gpu in planned(facts, cluster)}
    for node, gpu in planned(facts, cluster):
        if gpu.persistence is False and True not in modes:
            yield passed(
                node.node,
                "persistence mode is off: a start takes 1-3 s longer for each GPU, a run is no"
                " slower",
                wanted="on, or off on all nodes",
                found="off on all nodes",
                remedy="nothing to do; sudo systemctl enable --now nvidia-persistenced turns it on",
                gpus=(gpu.index,),
            )
        elif gpu.persistence is False:
            yield warn(
                node.node,
                "persistence mode is off",
                wanted="on, as on other GPUs",
                found="off",
                remedy="sudo systemctl enable --now nvidia-persistenced (on the node), or"
                " sudo nvidia-smi -pm 1 until the next boot",
                gpus=(gpu.index,),
            )


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
def busy(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the processes that hold more memory than a driver or a desktop."""
    for node in facts.values():
        planned = tuple(gpu for gpu in planned_devices(node, cluster) if not gpu.lost)
        yield from _working_for_nobody(node, planned)
        held = [gpu for gpu in planned if _is_held(gpu)]
        if not held:
            if any(gpu.used_mib is None and not gpu.mig for gpu in planned):
                yield _not_reported(node, "how much of its GPUs' memory is in use")
            continue
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


@Check(
    "accelerator.order",
    title="the GPUs are numbered as nvidia-smi numbers them",
    why="A variable of the session can hide GPUs or change their order: a rank, and clusterctl's"
    " findings, would mean another GPU.",
    fix="Unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER in the session: clusterctl sets them"
    " for each run.",
    source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
    explained_by=(COUNT,),
    blocks=False,
    required_facts=("environment",),
    applies=uses_gpus,
)
def order(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge the session's variables, unless the job sets them."""
    job = {name for name, _ in cluster.job.env} | set(cluster.job.env_from)
    for node in facts.values():
        devices = planned_devices(node, cluster)
        session = {name: value for name, value in node.environment or () if name not in job}
        visible = session.get(VISIBLE)
        if not devices or node.gpus is None:
            continue
        if visible is not None and not _in_order(visible, len(devices)):
            yield warn(
                node.node,
                f"the session sets {VISIBLE}",
                wanted="unset, or the planned GPUs in their order",
                found=visible or "empty: no GPU is visible",
                remedy=f"remove {VISIBLE} from ~/.bashrc and /etc/environment of the node, or set"
                f" it for the job: `job: {{env: {{{VISIBLE}: ...}}}}` in hosts.yaml",
            )
        elif (
            len({gpu.name for gpu in node.gpus.devices}) > 1
            and ORDER not in job
            and session.get(ORDER) != BUS_ORDER
            and node.gpus.tool == NVIDIA
        ):
            yield warn(
                node.node,
                "CUDA numbers GPUs of several models with the fastest first",
                wanted=f"{ORDER}={BUS_ORDER}",
                found=", ".join(sorted({gpu.name for gpu in node.gpus.devices})),
                remedy=f"set `job: {{env: {{{ORDER}: {BUS_ORDER}}}}}` in hosts.yaml",
            )


def _in_order(visible: str, count: int) -> bool:
    """Return whether the first GPUs are visible, in their order."""
    return visible.replace(" ", "").split(",")[:count] == [str(index) for index in range(count)]
