"""What a job needs below workdir: the sync may bring it, so it is judged after that."""

import time
from dataclasses import replace
from pathlib import Path

from clusterctl.checks.storage.run_paths import in_workdir, job_path
from clusterctl.errors import NodeError
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Emit, Progress
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, judge
from clusterctl.verbs.preflight.look_at_paths import look
from clusterctl.verbs.preflight.source_folder import with_local_needs


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
    began = time.monotonic()
    emit(Progress(phase="reading facts", done=0, total=len(cluster.nodes)))
    asked = {node.name: [job_path(node, need) for need in brought] for node in cluster.nodes}
    found = look(pool, asked)
    now = with_local_needs(_needing(cluster, brought), found.facts, source)
    facts = {
        name: _joined(known, now[name]) if name in now else _silent(name, found.errors[name])
        for name, known in before.facts.items()
    }
    options = CheckOptions(code=False, strict=before.strict)
    verdict = judge(cluster, facts, options, before.network)
    return replace(verdict, seconds=before.seconds + time.monotonic() - began)


def _joined(before: NodeFacts, now: NodeFacts) -> NodeFacts:
    """Add what is known of further paths."""
    new = tuple(
        # What a sync brings is there by now, or it is lost.
        replace(path, here="" if path.here == "synced" else path.here)
        for path in now.paths
        if before.path(path.path) is None
    )
    return replace(before, paths=(*before.paths, *new))


def _silent(name: str, error: NodeError) -> NodeFacts:
    """Return what is known of a node that is silent now: nothing."""
    reach = SshStatus(state=error.state, phase=error.phase, words=error.message, hint=error.hint)
    return NodeFacts(node=name, reach=reach)


def _brought(cluster: Cluster) -> tuple[str, ...]:
    return tuple(
        need for need in cluster.job.needs if any(in_workdir(node, need) for node in cluster.nodes)
    )


def _needing(cluster: Cluster, needs: tuple[str, ...]) -> Cluster:
    return replace(cluster, job=replace(cluster.job, needs=needs))
