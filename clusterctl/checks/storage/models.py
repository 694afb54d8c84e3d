"""Whether the models that a run needs are whole."""

from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.disks import known_paths
from clusterctl.checks.storage.run_paths import run_paths
from clusterctl.checks.storage.shares import MissingShares, skip_missing
from clusterctl.inventory.cluster import Cluster, Node

_SHOWN = 3


@Check(
    "storage.model",
    title="the models in `needs:` are whole",
    why="If a download or a copy was cut, loading the model fails, often on one rank only while the"
    " others wait.",
    fix="Download the model again, or copy it from a complete one with `clusterctl push`.",
    source="https://huggingface.co/docs/safetensors/index#format",
    applies=lambda node, cluster: (
        bool(cluster.job.needs)
        and any(p.digest for p in node.paths if p.path in _needs(cluster, cluster.node(node.node)))
    ),
)
def model(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the shards by their index and headers, and what belongs next to the weights."""
    missing = MissingShares.of(facts, cluster)
    for node, _known, path in known_paths(facts, cluster, "needs"):
        if missing.explains(node.name, path.path):
            yield skip_missing(node.name, path.path)
            continue
        download = "download it again, or copy it from a complete one: clusterctl push"
        if path.faults:
            more = len(path.faults) - _SHOWN
            yield fail(
                node.name,
                f"the model in {path.path} is not complete",
                wanted="every shard of its index, at its full length",
                found="\n".join(path.faults[:_SHOWN]) + (f"\nand {more} more" if more > 0 else ""),
                remedy=download,
            )
        if path.lacks:
            listed = ", ".join(path.lacks)
            yield warn(
                node.name,
                f"{path.path} has weights, but no {listed}",
                wanted="config.json and the tokenizer in the folder of the weights",
                found=f"no {listed}",
                remedy=download,
            )


def _needs(cluster: Cluster, node: Node) -> set[str]:
    return {place.path for place in run_paths(cluster, node) if place.role == "needs"}
