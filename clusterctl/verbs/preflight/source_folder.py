"""What a sync would bring from the folder here, such as the launcher's configuration."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from clusterctl.checks.software.packages import metadata_name
from clusterctl.checks.storage.run_paths import in_workdir, job_path
from clusterctl.errors import ClusterError
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import launcher_settings
from clusterctl.facts.storage.storage import Here
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import TreeAnswer
from clusterctl.plan.launchers import launcher_file
from clusterctl.sync.source import SourceTree, read_source, source_paths
from clusterctl.transport.interface import Request
from clusterctl.verbs.rpc import Nodes, call_validated
from clusterctl.verbs.setup.requirements import read_requirements
from clusterctl.verbs.sync.copying import MUCH_READ, checkpoints_in

COMPARE_SECONDS = 60.0
"""For a node to compare its folder; a slower one counts as silent."""


def with_local_needs(
    cluster: Cluster, facts: Mapping[str, NodeFacts], source: Path
) -> dict[str, NodeFacts]:
    """Return the facts, with what the folder has of the needs below workdir."""
    wanted = {
        (node.name, job_path(node, need)): local
        for node in cluster.nodes
        for need in cluster.job.needs
        if (local := in_workdir(node, need))
    }
    if not wanted:
        return dict(facts)
    try:
        listed = source_paths(source, leave_out=checkpoints_in(cluster, source))
    except ClusterError:
        return dict(facts)  # it is none to mirror, such as the home folder
    here = {local: _here(source, listed, local) for local in set(wanted.values())}
    found = {}
    for name, known in facts.items():
        paths = (
            replace(path, here=here[wanted[name, path.path]])
            if (name, path.path) in wanted
            else path
            for path in known.paths
        )
        found[name] = replace(known, paths=tuple(paths))
    return found


def other_code(pool: Nodes, cluster: Cluster, nodes: Collection[Node], source: Path) -> set[str]:
    """Return the nodes where a sync placed other code than the folder has.

    Not those that are silent, or whose files came otherwise: their folder may be this one.
    """
    read = read_folder(cluster, source)
    return other_tree(pool, nodes, read.tree) if read is not None else set()


def other_tree(pool: Nodes, nodes: Collection[Node], tree: str) -> set[str]:
    """Return the nodes where a sync placed other files than those of this tree."""
    args = {node.name: {"workdir": node.workdir, "tree": tree} for node in nodes if node.workdir}
    requests = {name: Request(op="sync-compare", args=one, stay=True) for name, one in args.items()}
    answers, _ = call_validated(pool, requests, TreeAnswer, timeout=COMPARE_SECONDS)
    return {name for name, answer in answers.items() if answer.placed and not answer.equal}


def read_folder(cluster: Cluster, source: Path) -> SourceTree | None:
    """Return the folder as a sync would; None: it is none to mirror, or too much to read now."""
    try:
        return read_source(source, leave_out=checkpoints_in(cluster, source), before=_refuse_large)
    except ClusterError:
        return None


def _refuse_large(unread: Mapping[bytes, int]) -> None:
    if sum(unread.values()) > MUCH_READ:
        raise ClusterError("to read it takes longer than a check may")


def _here(source: Path, listed: Collection[bytes], local: str) -> Here:
    path = os.fsencode(local)
    if path in listed:
        return "synced"
    if any(each.startswith(path + b"/") for each in listed):
        inside = os.walk(source / local)
        found = (Path(root, name) for root, _, names in inside for name in names)
        every = all(os.fsencode(file.relative_to(source)) in listed for file in found)
        return "synced" if every else ""  # a sync would bring only a part of it
    return "ignored" if os.path.exists(source / local) else "absent"  # noqa: PTH110  (never raises)


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


NAME = "requirements.txt"
_PLAIN = re.compile(
    r"([A-Za-z0-9][\w.-]*)\s*(?:\[[\w\s,.-]*\])?\s*((?:(?:===?|~=|!=|[<>]=?)\s*[\w.*+!-]+\s*,?\s*)*)"
)
"""A name and versions; not a URL, nor a line that only holds on some machines."""
_MOST = 200
"""Lines that are compared."""


def local_requirements(source: Path) -> tuple[tuple[str, str], ...]:
    """Return the names as packages' metadata has them, each with its versions, as `>=2.4,<3`."""
    if (source / "uv.lock").exists() or not (source / NAME).is_file():
        return ()  # of both, setup takes the lock, which only uv reads
    try:
        lines = read_requirements(source / NAME, source).text.splitlines()
    except ClusterError:
        return ()  # setup says what is wrong with it
    found = filter(None, (_PLAIN.fullmatch(line.strip()) for line in lines[:_MOST]))
    return tuple((metadata_name(one[1]), "".join(one[2].split())) for one in found)
