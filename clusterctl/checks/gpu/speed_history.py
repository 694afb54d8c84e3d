"""Whether a node is as fast as in this cluster's earlier checks with `--deep`."""

import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, passed, warn
from clusterctl.checks.gpu.gpu_trials import GPUS
from clusterctl.checks.network.collectives import DEEP
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.speeds import MEASURED, speeds_of

HISTORY = "deep.history"
DROP = 0.8
"""Part of the usual speed below which it has dropped."""
SHARED_DROP = 0.6
"""The same across nodes: other jobs use the network, too."""
_CLOCKS = "nvidia-smi -q -d PERFORMANCE,POWER (on the node)"
_NAMES = {
    "tflops": ("the slowest GPU multiplies", "TFLOP/s", _CLOCKS),
    "memory_gb_s": ("the slowest GPU copies", "GB/s", _CLOCKS),
    "inside_gbps": (
        "the GPUs of the node exchange data",
        "Gb/s",
        "nvidia-smi topo -m; nvidia-smi nvlink -s (on the node)",
    ),
    "across_gbps": (
        "the GPUs exchange data with other nodes",
        "Gb/s",
        "rdma link; clusterctl check --explain-network",
    ),
}


@Check(
    HISTORY,
    title="the GPUs and their links are as fast as in earlier checks of this cluster",
    why="If all nodes become slow together, a comparison of the nodes does not show it.",
    fix="Look for what changed since: the driver, a power limit, the cooling, cables, what else"
    " uses the network. A new speed that stays becomes the usual one after three checks, or at once"
    " if you delete the file that holds the earlier ones.",
    source="docs/how-to/check-a-cluster.md",
    explained_by=(DEEP, GPUS),
    blocks=False,
    applies=lambda node, _cluster: node.trials.usual is not None,
)
def history(facts: Facts) -> Iterator[Finding]:
    """Compare each speed with the median of the earlier ones."""
    well: list[tuple[float, str]] = []
    nodes = sum(node.ladder is not None for node in facts.values())
    for node in facts.values():
        usual = node.trials.usual
        now = speeds_of(node, nodes)
        if usual is None or now is None:
            continue
        compared = [
            (name, getattr(now, name), getattr(usual.speeds, name))
            for name in MEASURED
            if getattr(now, name) is not None and getattr(usual.speeds, name) is not None
        ]
        for name, found, before in compared:
            does, unit, look = _NAMES[name]
            if found < _least(name) * before:
                yield warn(
                    node.node,
                    f"{does} more slowly than before",
                    wanted=f"about {before:.4g} {unit}, the median of at least"
                    f" {counted(usual.checks, 'earlier check')}",
                    found=f"{found:.4g} {unit}",
                    remedy=f"{look}; if the new speed is right: rm"
                    f" {shlex.quote(usual.file)} (on this machine)",
                )
        if compared and all(found >= _least(name) * before for name, found, before in compared):
            well.append((min(found / before for _, found, before in compared), node.node))
    if well:
        worst, _ = min(well)
        yield passed(
            tuple(name for _, name in well),
            f"every speed is at least {worst:.0%} of the usual one",
            wanted=f"{DROP:.0%} of the median of earlier checks, {SHARED_DROP:.0%} across nodes",
            found=f"at least {worst:.0%}",
        )


def _least(name: str) -> float:
    return SHARED_DROP if name == "across_gbps" else DROP
