"""What a node reached in `check --deep`, in a few numbers that can be compared over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.values.ladder import GpuTrial, Speeds

MEASURED = ("tflops", "memory_gb_s", "inside_gbps", "across_gbps")
"""The fields of `Speeds` that are speeds."""


def speeds_of(node: NodeFacts, nodes: int) -> Speeds | None:
    """Return the speeds of a node's GPUs; None if none was measured.

    Args:
        node: its facts.
        nodes: how many took part.
    """
    ladder = node.ladder
    if ladder is None:
        return None
    models = Counter(gpu.name for gpu in (node.gpus.devices if node.gpus else ()))
    speeds = Speeds(
        gpus=", ".join(f"{count} x {name}" for name, count in models.items()),
        nodes=nodes,
        tflops=_slowest(ladder.gpus, "tflops"),
        memory_gb_s=_slowest(ladder.gpus, "memory_gb_s"),
        inside_gbps=_slowest(ladder.inside, "gbps") if len(ladder.inside) > 1 else None,
        across_gbps=node.across.gbps if node.across and node.across.right else None,
    )
    return speeds if any(getattr(speeds, name) is not None for name in MEASURED) else None


def _slowest(trials: tuple[GpuTrial, ...], name: str) -> float | None:
    found = [getattr(trial, name) for trial in trials if getattr(trial, name) is not None]
    return min(found, default=None)


def usual_of(earlier: Sequence[Speeds], now: Speeds) -> Speeds | None:
    """Return the median of what the same GPUs, and as many nodes, reached; None: nothing did."""
    alike = [one for one in earlier if one.gpus == now.gpus]
    found: dict[str, float] = {}
    for name in MEASURED:
        known = [
            getattr(one, name)
            for one in alike
            if getattr(one, name) is not None and (name != "across_gbps" or one.nodes == now.nodes)
        ]
        if known:
            found[name] = median(known)
    return Speeds(gpus=now.gpus, nodes=now.nodes, **found) if found else None
