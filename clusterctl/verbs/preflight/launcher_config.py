"""The launcher's own configuration as the sync will bring it, before it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clusterctl.checks.storage.run_paths import in_workdir
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import launcher_settings
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.launchers import launcher_file

_LIMIT = 1 << 20
"""Bytes of the file that are read."""


def with_local_config(
    cluster: Cluster, facts: Mapping[str, NodeFacts], source: Path
) -> dict[str, NodeFacts]:
    """Return the facts with the settings in the folder, instead of the nodes' copies.

    A file outside workdir, or that the folder does not have, is the node's.
    """
    found = dict(facts)
    for node in cluster.nodes:
        local = in_workdir(node, launcher_file(cluster.job, node))
        try:
            text = (source / local).read_bytes()[:_LIMIT] if local else None
        except OSError:
            continue
        if text is not None and found[node.name].answered:
            settings = launcher_settings(text.decode("utf-8", "replace"))
            found[node.name] = replace(found[node.name], launcher_config=settings)
    return found
