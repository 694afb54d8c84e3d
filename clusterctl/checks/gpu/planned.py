"""The GPUs that a run will use, as the rules on accelerators compare them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping

from clusterctl.facts.gpu.accelerators import Gpu
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.processes import chosen_by_job, planned_gpus

NVIDIA = "nvidia-smi"

Read = Callable[[Gpu], Hashable | None]
"""Returns what a GPU reports of something; None if it does not report it."""


def uses_gpus(node: NodeFacts, cluster: Cluster) -> bool:
    """Return whether a run will use GPUs of the node."""
    return planned_gpus(cluster, node) > 0


def planned_devices(node: NodeFacts, cluster: Cluster) -> tuple[Gpu, ...]:
    """Return the accelerators that a run will use: the first ones, as many as are planned."""
    if node.gpus is None or not node.gpus.devices:
        return ()
    devices = chosen_by_job(cluster, node) or node.gpus.devices
    return devices[: planned_gpus(cluster, node)]


def planned(facts: Mapping[str, NodeFacts], cluster: Cluster) -> Iterator[tuple[NodeFacts, Gpu]]:
    """Yield each GPU that a run will use and that answers, with its node."""
    for node in facts.values():
        for gpu in planned_devices(node, cluster):
            if not gpu.lost:
                yield node, gpu


def reports(read: Read) -> Callable[[NodeFacts, Cluster], bool]:
    """Return the condition that every planned GPU of a node that answers reports something."""

    def applies(node: NodeFacts, cluster: Cluster) -> bool:
        devices = [gpu for gpu in planned_devices(node, cluster) if not gpu.lost]
        return bool(devices) and all(read(gpu) is not None for gpu in devices)

    return applies


def usual_of_model(
    facts: Mapping[str, NodeFacts], cluster: Cluster, read: Read
) -> Mapping[str, Counter[Hashable]]:
    """Return for each model how many planned GPUs report each value."""
    values: dict[str, Counter[Hashable]] = {}
    for _, gpu in planned(facts, cluster):
        value = read(gpu)
        if value is not None:
            values.setdefault(gpu.name, Counter())[value] += 1
    return values


def highest_of_model(
    facts: Mapping[str, NodeFacts], cluster: Cluster, read: Callable[[Gpu], int | None]
) -> Mapping[str, int]:
    """Return for each model the highest number that a planned GPU reports; 0: none does."""
    highest: dict[str, int] = {}
    for _, gpu in planned(facts, cluster):
        highest[gpu.name] = max(highest.get(gpu.name, 0), read(gpu) or 0)
    return highest


def reset_command(node: NodeFacts) -> str:
    """Return the command that resets GPUs of a node."""
    if node.gpus is not None and node.gpus.tool != NVIDIA:
        return (
            "sudo amd-smi reset -G -g N (on the node, without any process), with N = {gpus} in turn"
        )
    return "sudo nvidia-smi --gpu-reset -i {gpus} (on the node, without any process on them)"
