"""The other runs that may write where a run writes: `launch` warns of them.

What was written while one of them lived is not claimed for the run.
"""

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from clusterctl.checks.storage.run_paths import job_path, share_of
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import RunsAnswer
from clusterctl.model.node_run import NodeRun
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.rpc import Nodes, call_validated, node_args
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.history import History
from clusterctl.verbs.runs.run_status import RunStatus, view_of

_SECONDS = 20.0
"""A node that is slower than that, or does not answer, is left out: this is not worth a wait."""
Place = Literal["checkpoints", "workdir"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """A run that may write to the same folder."""

    view: RunStatus
    place: Place
    folder: str
    """That both have."""

    def document(self) -> dict[str, Any]:
        """Return it as a node compares it with the times of files."""
        began, ended = self.view.began or 0.0, self.view.ended
        return {"run": self.view.run, "began": began, "ended": ended, "live": self.view.live}


def other_runs(
    nodes: Nodes, cluster: Cluster, folders: Sequence[str], *, but: Collection[str]
) -> list[OtherRun]:
    """Ask the nodes for runs that write to these folders, or work in the same workdir.

    The other nodes are asked if they may share one of the folders.
    """
    others_share = is_shared(cluster, (*folders, "."))
    nodes_to_ask = (*cluster.nodes, *(cluster.left_out if others_share else ()))
    asked = {node.name: node for node in nodes_to_ask}
    requests = {
        name: Request(op="runs", args=node_args(cluster, node), stay=True)
        for name, node in asked.items()
    }
    answers, _ = call_validated(nodes, requests, RunsAnswer, timeout=_SECONDS)
    found: dict[str, dict[str, NodeRun]] = {}
    for name, answer in answers.items():
        for node_run in answer.runs:
            if node_run.run not in but and run_id.cluster_of(node_run.run) == cluster.name:
                found.setdefault(node_run.run, {})[name] = node_run
    others = []
    for run, node_runs in found.items():
        part = cluster.with_nodes(tuple(asked[name] for name in node_runs))
        if meeting := meets(cluster, folders, node_runs):
            place, folder = meeting
            others.append(
                OtherRun(view=view_of(run, part, node_runs, {}), place=place, folder=folder)
            )
    return others


def meets(
    cluster: Cluster, folders: Sequence[str], node_runs: Mapping[str, NodeRun]
) -> tuple[Place, str] | None:
    """Return where a run and another one may write to the same files; None: nowhere.

    Two runs that each say where their checkpoints go meet there or nowhere.

    Args:
        cluster: the nodes of the run.
        folders: of its checkpoints; empty: unknown.
        node_runs: the parts of the other run, by node.
    """
    meeting: tuple[Place, str] | None = None
    for name, node_run in node_runs.items():
        workdir, theirs = node_run.workdir, node_run.checkpoints
        for node in cluster.nodes:
            for folder in folders if theirs else ():
                one, other = job_path(node, folder), posixpath.join(workdir, theirs)
                if _nested(one, other) and _same_disk(cluster, node, name, one):
                    return "checkpoints", folder
            known = folders and theirs
            if not known and workdir == node.workdir and _same_disk(cluster, node, name, workdir):
                meeting = "workdir", workdir
    return meeting


def with_other_runs(nodes: Nodes, cluster: Cluster, history: History) -> History:
    """Return the history with the runs that may have written to its folders from other nodes."""
    folders = history.folders(cluster.job)
    if not is_shared(cluster, folders):
        return history  # each node knows what ran on it
    own = [run.run for run in history.runs]
    others = other_runs(nodes, cluster, folders, but=own)
    return replace(history, others=tuple(other.document() for other in others))


def is_shared(cluster: Cluster, folders: Sequence[str]) -> bool:
    """Tell whether several nodes see one of these folders."""
    return any(
        share_of(cluster, job_path(node, folder)) for node in cluster.nodes for folder in folders
    )


def _nested(one: str, other: str) -> bool:
    paths = posixpath.normpath(one), posixpath.normpath(other)
    return all(map(posixpath.isabs, paths)) and posixpath.commonpath(paths) in paths


def _same_disk(cluster: Cluster, node: Node, other: str, path: str) -> bool:
    return node.name == other or share_of(cluster, path) is not None
