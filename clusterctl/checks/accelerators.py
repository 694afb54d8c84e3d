"""Whether the accelerators that are planned are there, alike, healthy and free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusterctl.checks.finding import Finding
from clusterctl.checks.planned import chosen_by_job, planned_gpus
from clusterctl.checks.registry import Facts, check
from clusterctl.facts.nodefacts import Gpu, NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

BUSY_MIB = 1024
"""A driver and a desktop hold less."""

_ASK = {"nvidia-smi": "nvidia-smi -q", "amd-smi": "amd-smi static", "rocm-smi": "rocm-smi"}

COUNT = "accelerator.count"


def _used(node: NodeFacts, cluster: Cluster) -> bool:
    return planned_gpus(cluster, node) > 0


@check(
    COUNT,
    title="every node has the accelerators that are planned",
    why="A missing GPU stops the start of its rank, and with it the whole run.",
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
            yield Finding(
                check=COUNT,
                status="fail" if "exit code" in why else "unknown",
                nodes=(node.node,),
                message="the accelerators could not be listed",
                wanted=want,
                found=why,
                remedy=f"{_ASK.get(tool, _ASK['nvidia-smi'])} (on the node); a driver that was just"
                " updated wants a reboot",
            )
        elif not node.gpus.devices:
            tool = node.gpus.tool
            yield Finding(
                check=COUNT,
                status="fail",
                nodes=(node.node,),
                message="there is no accelerator",
                wanted=want,
                found=f"{tool} lists none" if tool else "no nvidia-smi, amd-smi or rocm-smi",
                remedy="install its driver, or for CPUs set `defaults: {gpus: 0}` in hosts.yaml",
            )
        elif wanted is not None and len(node.gpus.devices) < wanted:
            found = len(node.gpus.devices)
            yield Finding(
                check=COUNT,
                status="fail",
                nodes=(node.node,),
                message="accelerators are missing",
                wanted=want,
                found=f"{found} x {node.gpus.devices[0].name}",
                remedy=f"write `gpus: {found}` for it, or look why: sudo dmesg | grep -i xid",
            )


@check(
    "accelerator.same",
    title="all accelerators are of one model",
    why="The slowest one sets the pace of every step, the smallest memory the batch size.",
    after=(COUNT,),
    blocks=False,
    applies=_used,
)
def same(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare the names of the planned ones with the most frequent one."""
    models = {node.node: [gpu.name for gpu in _planned(node, cluster)] for node in facts.values()}
    frequent = Counter(name for names in models.values() for name in names).most_common(1)
    for name, found in models.items():
        others = sorted(set(found) - {model for model, _ in frequent})
        if others:
            yield Finding(
                check="accelerator.same",
                status="warn",
                nodes=(name,),
                message="its accelerators are of another model"
                if len(set(found)) == 1
                else "its accelerators are of several models",
                wanted=frequent[0][0],
                found=", ".join(sorted(set(found))),
                remedy=f"leave it out: --exclude {name}"
                if len(set(found)) == 1
                else "write `gpus:` so that those of one model are used: the first ones are",
            )


def _planned(node: NodeFacts, cluster: Cluster) -> tuple[Gpu, ...]:
    """Return the accelerators that a run will use: as many as are planned, the first ones."""
    devices = chosen_by_job(cluster, node) or (node.gpus.devices if node.gpus else ())
    return devices[: planned_gpus(cluster, node)]


@check(
    "accelerator.health",
    title="the driver asks for nothing",
    why="A GPU with pending row remaps or uncorrectable errors fails within a long run.",
    after=(COUNT,),
    applies=_used,
)
def health(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Say what the driver says of each planned GPU."""
    for node in facts.values():
        planned = _planned(node, cluster)
        if planned and node.gpus and node.gpus.tool not in {"", "nvidia-smi"}:
            # Its tool is not asked for errors: none to be seen is not none.
            yield _untold("accelerator.health", node, "the health of its GPUs")
            continue
        for gpu in planned:
            for found, remedy in _complaints(gpu):
                yield Finding(
                    check="accelerator.health",
                    status="fail",
                    nodes=(node.node,),
                    message=f"GPU {gpu.index} ({gpu.bus_id}) is not well",
                    wanted="a GPU in order",
                    found=found,
                    remedy=remedy,
                )


def _untold(check_id: str, node: NodeFacts, what: str) -> Finding:
    tool = node.gpus.tool if node.gpus else ""
    message = f"{tool or 'the driver'} does not tell {what}"
    return Finding(check=check_id, status="skip", nodes=(node.node,), message=message)


def _complaints(gpu: Gpu) -> Iterator[tuple[str, str]]:
    reset = f"sudo nvidia-smi --gpu-reset -i {gpu.index}"
    if gpu.recovery_action:
        yield f"the driver asks for: {gpu.recovery_action}", f"do that; a reset is: {reset}"
    elif gpu.remap_pending:
        yield "memory rows wait to be remapped", reset
    elif gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} uncorrectable memory errors since boot", reset
    if gpu.mig:
        yield "it is split (MIG mode)", f"sudo nvidia-smi -i {gpu.index} -mig 0"


@check(
    "accelerator.busy",
    title="the accelerators are free",
    why="What another process holds of a GPU's memory is missing when the model is loaded.",
    after=(COUNT, "node.busy"),
    blocks=False,
    applies=_used,
)
def busy(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name who holds more memory than a driver or desktop does."""
    for node in facts.values():
        planned = _planned(node, cluster)
        held = [gpu for gpu in planned if _is_held(gpu)]
        if not held:
            if any(gpu.used_mib is None and not gpu.mig for gpu in planned):
                yield _untold("accelerator.busy", node, "how much of its GPUs' memory is in use")
            continue
        users = sorted(
            {f"{p.name or 'a process'} (pid {p.pid})" for gpu in held for p in gpu.processes or ()}
        )
        numbers = ", ".join(str(gpu.index) for gpu in held)
        yield Finding(
            check="accelerator.busy",
            status="warn",
            nodes=(node.node,),
            message=f"memory of GPU {numbers} is in use",
            wanted=f"less than {BUSY_MIB} MiB each",
            found=f"up to {max(g.used_mib or 0 for g in held)} MiB by "
            + (", ".join(users) or "no process that can be seen"),
            remedy="end it if it is yours; nvidia-smi on the node shows it",
        )


def _is_held(gpu: Gpu) -> bool:
    return gpu.used_mib is not None and gpu.used_mib > BUSY_MIB and not gpu.mig
