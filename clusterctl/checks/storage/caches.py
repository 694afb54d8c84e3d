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
    title="compilers and temporary files use a folder of each node's own",
    why="Triton, inductor and torch's extensions lock and rename files in their caches. Nodes that"
    " compile into one folder wait for each other's locks, or load half a file.",
    fix="Set the variable to a folder on each node's own disk, and make the folder of TMPDIR.",
    source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    explained_by=("storage.shared",),
    blocks=False,
    applies=lambda _node, cluster: bool(cache_folders(cluster)),
)
def caches(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the folders that `job.env` names; shared ones only if there are several nodes."""
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
