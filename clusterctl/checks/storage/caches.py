"""Whether the folders of caches and temporary files are each node's own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, unknown, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.run_paths import cache_folders, share_of
from clusterctl.checks.storage.shares import no_answer
from clusterctl.facts.storage.mounts import NETWORK
from clusterctl.inventory.cluster import Cluster


@Check(
    "storage.caches",
    title="compilers and temporary files use a folder of each node's own, and no lock is left",
    why="Triton, inductor and torch's extensions lock and rename files in their caches. Nodes that"
    " compile into one folder wait for each other's locks, or load half a file. A build that is"
    " killed leaves its lock, and every later rank waits for it silently.",
    fix="Set the variable to a folder on each node's own disk, and make the folder of TMPDIR."
    " Remove a lock that no process holds.",
    source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    explained_by=("storage.shared",),
    blocks=False,
    required_facts=("build_locks",),
    applies=lambda node, cluster: bool(cache_folders(cluster) or node.build_locks),
)
def caches(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the folders that `job.env` names, shared ones only if there are several; and locks."""
    yield from _dead_locks(facts)
    answered = [node for node in facts.values() if node.answered]
    for name, folder in cache_folders(cluster).items():
        places = {node.node: path for node in answered if (path := node.path(folder)) is not None}
        on_network = [n for n, path in places.items() if NETWORK.fullmatch(path.filesystem)]
        sharing = [*places] if share_of(cluster, folder) else on_network
        if len(sharing) > 1:
            own = "/tmp" if name == "TMPDIR" else f"/var/tmp/{name.lower()}"  # noqa: S108  (named)
            yield warn(
                tuple(sharing),
                f"{name} is on a filesystem that these nodes share",
                wanted="a folder on each node's own disk",
                found=folder,
                remedy=f"set {name}: {own} in job.env",
            )
            continue
        for node, path in places.items():
            if name == "TMPDIR" and path.exists is None:
                yield unknown(
                    node,
                    f"the folder of TMPDIR, {folder}, {no_answer(path)}",
                    wanted="a folder",
                    found=path.problem or "no answer",
                    remedy="clusterctl check",
                )
            elif name == "TMPDIR" and not path.exists:
                yield warn(
                    node,
                    "the folder of TMPDIR does not exist: mktemp fails, and Python uses /tmp",
                    wanted="a folder",
                    found=f"no {folder}",
                    remedy=f"mkdir -p {shlex.quote(folder)} (on the node)",
                )


def _dead_locks(facts: Facts) -> Iterator[Finding]:
    """Find locks that no process has open, on any node: the path may be shared."""
    if any(node.build_locks is None for node in facts.values()):
        return  # the path may be shared, and one that did not tell may hold it
    held = {lock.path for node in facts.values() for lock in node.build_locks or () if lock.held}
    for node in facts.values():
        for lock in node.build_locks or ():
            if lock.path not in held:
                minutes = lock.age_s / 60
                yield warn(
                    node.node,
                    f"a build of torch's extensions left its lock {lock.path}, and ranks would wait"
                    " for it forever",
                    wanted="no lock without a build",
                    found=f"{minutes:.0f} min old, and no process of these nodes has it open",
                    remedy=f"rm {shlex.quote(lock.path)} (on the node)",
                )
