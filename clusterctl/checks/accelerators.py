"""Whether the accelerators that the job needs are present, equal, healthy and free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, finding, skip, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.values.accelerators import Gpu
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network
from clusterctl.plan.processes import chosen_by_job, planned_gpus

BUSY_MIB = 1024
"""A driver and a desktop use less."""

_ASK = {"nvidia-smi": "nvidia-smi -q", "amd-smi": "amd-smi static", "rocm-smi": "rocm-smi"}

COUNT = "accelerator.count"


def _used(node: NodeFacts, cluster: Cluster) -> bool:
    return planned_gpus(cluster, node) > 0


@Check(
    COUNT,
    title="every node has the accelerators that the job needs",
    why="A rank without its GPU cannot start, and the whole run fails.",
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
            why = node.why_unknown("gpus") or "unknown"
            tool = why.partition(":")[0]
            yield finding(
                "fail" if "exit code" in why else "unknown",
                node.node,
                "cannot list the accelerators",
                wanted=want,
                found=why,
                remedy=f"{_ASK.get(tool, _ASK['nvidia-smi'])} (on the node);"
                " reboot it if its driver was just updated",
            )
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
                found=f"{found} x {node.gpus.devices[0].name}",
                remedy=f"sudo dmesg | grep -i xid (on the node), or set `gpus: {found}` for it",
            )


@Check(
    "accelerator.same",
    title="all accelerators are the same model",
    why="The slowest GPU sets the pace of every step; the smallest memory limits the batch size.",
    explained_by=(COUNT,),
    blocks=False,
    applies=_used,
)
def same(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare each model with the most frequent one."""
    models = {node.node: [gpu.name for gpu in _planned(node, cluster)] for node in facts.values()}
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


def _planned(node: NodeFacts, cluster: Cluster) -> tuple[Gpu, ...]:
    """Return the accelerators that a run will use: the first ones, as many as are planned."""
    devices = chosen_by_job(cluster, node) or (node.gpus.devices if node.gpus else ())
    return devices[: planned_gpus(cluster, node)]


@Check(
    "accelerator.health",
    title="the driver reports no GPU errors",
    why="A GPU with pending row remaps or uncorrectable errors fails within a long run.",
    explained_by=(COUNT,),
    applies=_used,
)
def health(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Report the driver's complaints about each planned GPU."""
    for node in facts.values():
        planned = _planned(node, cluster)
        if planned and node.gpus and node.gpus.tool not in {"", "nvidia-smi"}:
            # clusterctl does not ask this tool for errors, so it cannot rule them out.
            yield _not_reported(node, "the health of its GPUs")
            continue
        for gpu in planned:
            for found, remedy in _complaints(gpu):
                yield fail(
                    node.node,
                    "unhealthy GPU",
                    wanted="a healthy GPU",
                    found=found,
                    remedy=remedy,
                    gpus=(gpu.index,),
                )


def _not_reported(node: NodeFacts, what: str) -> Finding:
    tool = node.gpus.tool if node.gpus else ""
    message = f"{tool or 'the driver'} does not report {what}"
    return skip(node.node, message)


def _complaints(gpu: Gpu) -> Iterator[tuple[str, str]]:
    reset = "sudo nvidia-smi --gpu-reset -i {gpus}"
    if gpu.recovery_action:
        yield (
            f"the driver asks for: {gpu.recovery_action}",
            f"do what it asks; to reset the GPU: {reset}",
        )
    elif gpu.remap_pending:
        yield "memory rows are waiting to be remapped", reset
    elif gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} uncorrectable memory errors since boot", reset
    if gpu.mig:
        yield "it is partitioned (MIG mode)", "sudo nvidia-smi -i {gpus} -mig 0"


@Check(
    "accelerator.busy",
    title="no other process uses the accelerators",
    why="GPU memory that another process holds is not available to your model.",
    explained_by=(COUNT, "node.busy"),
    blocks=False,
    applies=_used,
)
def busy(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the processes that hold more memory than a driver or a desktop."""
    for node in facts.values():
        planned = _planned(node, cluster)
        held = [gpu for gpu in planned if _is_held(gpu)]
        if not held:
            if any(gpu.used_mib is None and not gpu.mig for gpu in planned):
                yield _not_reported(node, "how much of its GPUs' memory is in use")
            continue
        users = sorted(
            {f"{p.name or 'a process'} (pid {p.pid})" for gpu in held for p in gpu.processes or ()}
        )
        numbers = ", ".join(str(gpu.index) for gpu in held)
        yield warn(
            node.node,
            f"memory of GPU {numbers} is in use",
            wanted=f"less than {BUSY_MIB} MiB each",
            found=f"up to {max(g.used_mib or 0 for g in held)} MiB by "
            + (", ".join(users) or "no visible process"),
            remedy="nvidia-smi (on the node) shows the process; end it if it is yours",
        )


def _is_held(gpu: Gpu) -> bool:
    return gpu.used_mib is not None and gpu.used_mib > BUSY_MIB and not gpu.mig
