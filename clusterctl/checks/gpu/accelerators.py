"""Whether the accelerators that the job needs are present, equal and usable."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, finding, warn
from clusterctl.checks.gpu.lost_gpus import LOST, cannot_list, not_listed
from clusterctl.checks.gpu.planned import NVIDIA, planned, planned_devices, reports, uses_gpus
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.gpu.accelerators import BUS_ORDER, ORDER, VISIBLE, Gpu
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

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
def count(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Compare what the vendor's tool lists with the inventory."""
    wanted = cluster.node(node.node).gpus_wanted
    if wanted == 0 or not node.answered:
        return
    want = "at least one" if wanted is None else str(wanted)
    if node.gpus is None:
        yield cannot_list(node, want)
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
        others = ", ".join(not_listed(node.gpus))
        yield fail(
            node.node,
            "accelerators are missing",
            wanted=want,
            found=f"{found} x {node.gpus.devices[0].name}"
            + (f"; the driver has {others}, too" if others else ""),
            remedy=f"sudo dmesg | grep -i xid (on the node), or set `gpus: {found}` for it",
        )


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
def same(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
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
def twice(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
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
def driver(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare each version with the most frequent one of the same tool."""
    versions: dict[str, dict[str, str]] = defaultdict(dict)
    for node in facts.values():
        if node.gpus and node.gpus.driver and uses_gpus(node, cluster):
            versions[node.gpus.tool][node.node] = node.gpus.driver
    for of_tool in versions.values():
        for name, version, usual in outliers(of_tool):
            remedy = f"install the driver {shlex.quote(usual)} on the node and reboot it"
            yield other_version("warn", name, "the GPU driver", version, usual, remedy)


@Check(
    "accelerator.mig",
    title="no GPU is partitioned (MIG)",
    why="A rank would get a part of a GPU, and NCCL does not connect such parts.",
    fix="Turn MIG off with `nvidia-smi -mig 0`, with no program on the GPU.",
    source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html",
    explained_by=(COUNT,),
    applies=reports(lambda gpu: gpu.mig),
)
def mig(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Report the partitioned GPUs."""
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
def compute_mode(node: NodeFacts, gpu: Gpu) -> Iterator[Finding]:
    """Report the GPUs that are not in the default mode."""
    if gpu.compute_mode in {"", "Default"}:
        return
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
def persistence(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report the GPUs without it where others have it; else it costs a run's start seconds."""
    modes = {gpu.persistence for _, gpu in planned(facts, cluster)}
    for node, gpu in planned(facts, cluster):
        if gpu.persistence is False and True in modes:
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
def order(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
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
