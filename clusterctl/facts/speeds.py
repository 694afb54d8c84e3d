"""What a node reached in `check --deep`, in a few numbers that can be compared over time."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from clusterctl.facts.ladder import GpuTrial, Speeds
from clusterctl.facts.nodefacts import NodeFacts

MEASURED = ("tflops", "memory_gb_s", "inside_gbps", "across_gbps")
"""The fields of `Speeds` that are speeds."""
ENOUGH = 3
"""Earlier checks that a usual speed needs: one alone may have been lucky."""
_ALIKE = {
    "inside_gbps": ("inside_bytes",),
    "across_gbps": ("nodes", "rails", "across_bytes", "network"),
}
"""What must be equal for a speed to be comparable, in addition to the GPUs."""


def speeds_of(node: NodeFacts, nodes: int) -> Speeds | None:
    """Return the speeds of a node's GPUs; None if none was measured."""
    ladder = node.ladder
    if ladder is None:
        return None
    tried = {trial.index for trial in ladder.gpus}
    models = Counter(gpu.name for gpu in node.devices if gpu.index in tried)
    across = node.across if node.across and node.across.right else None
    speeds = Speeds(
        gpus=", ".join(f"{count} x {name}" for name, count in models.items()),
        inside_bytes=ladder.inside[0].block_bytes if ladder.inside else None,
        nodes=nodes,
        rails=len(ladder.rails),
        across_bytes=across.block_bytes if across else None,
        network=", ".join(sorted(ladder.ways)),
        tflops=_slowest(ladder.gpus, "tflops"),
        memory_gb_s=_slowest(ladder.gpus, "memory_gb_s"),
        inside_gbps=_slowest(ladder.inside, "gbps") if len(ladder.inside) > 1 else None,
        across_gbps=across.gbps if across else None,
    )
    return speeds if any(getattr(speeds, name) is not None for name in MEASURED) else None


def _slowest(trials: tuple[GpuTrial, ...], name: str) -> float | None:
    found = [getattr(trial, name) for trial in trials if getattr(trial, name) is not None]
    return min(found, default=None)


def usual_of(earlier: Sequence[Speeds], now: Speeds) -> tuple[Speeds, int] | None:
    """Return the median of what the same GPUs reached alike, and of how many checks at least.

    None: no speed is known of enough checks.
    """
    found: dict[str, float] = {}
    checks = []
    for name in MEASURED:
        same = ("gpus", *_ALIKE.get(name, ()))
        known = [
            getattr(one, name)
            for one in earlier
            if getattr(one, name) is not None
            and all(getattr(one, field) == getattr(now, field) for field in same)
        ]
        if len(known) >= ENOUGH:
            found[name] = median(known)
            checks.append(len(known))
    if not found:
        return None
    usual = Speeds(
        gpus=now.gpus,
        inside_bytes=now.inside_bytes,
        nodes=now.nodes,
        rails=now.rails,
        across_bytes=now.across_bytes,
        network=now.network,
        **found,
    )
    return usual, min(checks)
