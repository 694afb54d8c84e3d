"""Deletes old runs on the nodes and on this machine, but never one that may be live."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import NodeError
from clusterctl.transport.interface import Request
from clusterctl.verbs.response_schema import PRUNED
from clusterctl.verbs.rpc import Nodes, call_validated, node_args
from clusterctl.verbs.runs.find_run import discover
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import SCHEMA, plain

KEPT = 10
"""Ended runs that are kept by default."""
PRUNE_SECONDS = 600.0
"""The time limit of a node, in seconds."""
SETTLED = 24 * 3600.0
"""Seconds after which a run that no node knows cannot be starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run that could not be deleted, or may not have ended."""

    run: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of pruning."""

    removed: tuple[str, ...]
    kept: tuple[Kept, ...]
    """Besides the newest: runs that may not have ended on every node."""
    errors: tuple[NodeError, ...]
    """Nodes that did not answer; then nothing is deleted."""

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `runs --prune --json` prints."""
        return {
            "schema": SCHEMA,
            "removed": list(self.removed),
            "kept": plain(self.kept),
            "troubles": [error.document() for error in self.errors],
        }


def prune(nodes: Nodes, records: Records, *, keep: int) -> Pruned:
    """Delete all but the newest ended runs of the cluster, on its nodes and on this machine.

    Args:
        nodes: of the cluster.
        records: of this machine.
        keep: how many of the ended runs stay.
    """
    found = discover(nodes)
    if found.errors:
        return Pruned(removed=(), kept=(), errors=found.errors)
    known = {record.run: record for record in records.all(nodes.cluster.name)}
    seen = {view.run: view for view in found.runs}
    ages: dict[str, float] = {}
    kept = []
    for run in {**known, **seen}:
        view, record = seen.get(run), known.get(run)
        why = _why_kept(nodes, records, view, record)
        if why:
            kept.append(Kept(run=run, why=why))
        else:
            ages[run] = (record.began if record else view.began if view else None) or 0.0
    newest_first = sorted(ages, key=lambda run: (ages[run], run), reverse=True)
    old = newest_first[keep:]
    requests = {
        node.name: Request(op="prune", args={**node_args(nodes.cluster, node), "runs": old})
        for node in nodes.cluster.nodes
        if old
    }
    answers, errors = call_validated(nodes, requests, PRUNED, timeout=PRUNE_SECONDS)
    failed: dict[str, str] = {}
    for node, answer in answers.items():
        failed |= {run: f"{node}: {why}" for run, why in answer["kept"].items()}
    removed = []
    for run in old:
        if run in failed:
            kept.append(Kept(run=run, why=failed[run]))
        elif not errors:
            records.remove(nodes.cluster.name, run)
            removed.append(run)
    return Pruned(removed=tuple(removed), kept=tuple(kept), errors=errors)


def _why_kept(
    nodes: Nodes, records: Records, view: RunStatus | None, record: RunRecord | None
) -> str:
    """Return why a run may not have ended; empty if it has."""
    nodes_of = view.nodes if view else ()
    going = [answer.node.name for answer in nodes_of if not (answer.end or answer.rebooted)]
    if view and going:
        return f"it has not ended on {', '.join(going)}; end it first: clusterctl stop {view.run}"
    if record is None or records.end(record) is not None:
        return ""
    in_inventory = {node.name for node in nodes.cluster.nodes}
    others = [node.name for node in record.cluster.nodes if node.name not in in_inventory]
    if others:
        return f"{', '.join(others)} is not in the inventory, and may have it"
    young = time.time() - record.began < SETTLED
    return "no node knows how it ended" if view is None and young else ""
