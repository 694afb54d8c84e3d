"""What a job needs below workdir: the sync may bring it, so it is judged after that."""

from dataclasses import replace
from pathlib import Path

from clusterctl.checks.storage.run_paths import in_workdir
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, check, judge

CHECK = "storage.needs"


def before_sync(cluster: Cluster) -> Cluster:
    """Return the cluster without the needs that a sync may bring."""
    brought = _brought(cluster)
    return _needing(cluster, tuple(need for need in cluster.job.needs if need not in brought))


def check_needs(
    cluster: Cluster, pool: Pool, before: CheckResult, source: Path, *, emit: Emit
) -> CheckResult:
    """Judge what was left out before the sync of a folder, on top of that verdict."""
    brought = _brought(cluster)
    if not brought:
        return before
    asked = CheckOptions(only=(CHECK,), source=source)
    now = check(_needing(cluster, brought), pool, asked, emit=emit)
    facts = {name: _joined(known, now.facts[name]) for name, known in before.facts.items()}
    options = CheckOptions(code=False, strict=before.strict)
    verdict = judge(cluster, facts, options, before.network)
    return replace(verdict, seconds=before.seconds + now.seconds)


def _joined(before: NodeFacts, now: NodeFacts) -> NodeFacts:
    """Add what is known of further paths; of a node that is silent now nothing is known."""
    if not now.answered:
        return now
    new = tuple(
        # What a sync brings is there by now, or it is lost.
        replace(path, here="" if path.here == "synced" else path.here)
        for path in now.paths
        if before.path(path.path) is None
    )
    return replace(before, paths=(*before.paths, *new))


def _brought(cluster: Cluster) -> tuple[str, ...]:
    return tuple(
        need for need in cluster.job.needs if any(in_workdir(node, need) for node in cluster.nodes)
    )


def _needing(cluster: Cluster, needs: tuple[str, ...]) -> Cluster:
    return replace(cluster, job=replace(cluster.job, needs=needs))
