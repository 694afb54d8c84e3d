"""Deletes old runs on the nodes and on this machine, but never one that may be live."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from clusterctl.errors import NodeError
from clusterctl.model.answers import PruneAnswer
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.rpc import Nodes, call_validated, node_args
from clusterctl.verbs.runs.find_run import discover
from clusterctl.verbs.runs.list_runs import ListedRun, claimed_line, newest_first, recorded_line
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.wire import SCHEMA, plain

KEPT = 10
"""Ended runs that are kept by default."""
PRUNE_SECONDS = 600.0
"""The time limit of a node, in seconds."""
SETTLED = 24 * 3600.0
"""Seconds after which a run is not recent, and one that no node knows cannot be starting."""
NAMED, RECENT = "it has a name", "it began less than a day ago"
"""Why an old run is kept that could be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run that could not be deleted, or may not have ended."""

    run: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """What pruning would delete; nothing is deleted yet."""

    runs: tuple[ListedRun, ...]
    """The newest first."""
    kept: tuple[Kept, ...]
    """Besides the newest: runs that may not have ended on every node, named and recent ones."""
    errors: tuple[NodeError, ...]
    """Nodes that did not answer; then nothing is to be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of pruning."""

    removed: tuple[str, ...]
    kept: tuple[Kept, ...]
    """Besides the newest: runs that may not have ended on every node, named and recent ones."""
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


def prunable(
    nodes: Nodes,
    records: Records,
    *,
    keep: int,
    every: bool = False,
    only: Collection[str] | None = None,
) -> Prunable:
    """Find all but the newest ended runs of the cluster.

    Args:
        keep: how many of the ended runs stay.
        every: also those with a name, and those of the last day.
        only: the ids of the runs to choose from; None: all.
    """
    found = discover(nodes)
    if found.errors:
        return Prunable(runs=(), kept=(), errors=found.errors)
    known = {record.run: record for record in records.all(nodes.cluster.name)}
    seen = {view.run: view for view in found.runs}
    lines, kept = [], []
    for run in {**known, **seen}:
        if only is not None and run not in only:
            continue
        view, record = seen.get(run), known.get(run)
        why = _why_kept(nodes, records, view, record)
        if why:
            kept.append(Kept(run=run, why=why))
        elif record is not None:
            line = recorded_line(record, view, records.end(record))
            # All nodes answered: what none of them knows is lost, as `status` has it.
            lines.append(replace(line, state="lost") if line.state == "unknown" else line)
        elif view is not None:
            lines.append(claimed_line(view))
    old = newest_first(lines, records)[keep:]
    wanted = {one.run: "" if every else _why_wanted(one) for one in old}
    wanted |= _resumed(records, {run for run, why in wanted.items() if not why})
    kept += [Kept(run=run, why=why) for run, why in wanted.items() if why]
    runs = tuple(one for one in old if not wanted[one.run])
    return Prunable(runs=runs, kept=tuple(kept), errors=())


def prune(nodes: Nodes, records: Records, plan: Prunable) -> Pruned:
    """Delete these runs on the cluster's nodes and on this machine; no node deletes a live one."""
    if plan.errors:
        return Pruned(removed=(), kept=plan.kept, errors=plan.errors)
    old = [one.run for one in plan.runs]
    requests = {
        node.name: Request(op="prune", args={**node_args(nodes.cluster, node), "runs": old})
        for node in nodes.cluster.nodes
        if old
    }
    answers, errors = call_validated(nodes, requests, PruneAnswer, timeout=PRUNE_SECONDS)
    failed: dict[str, str] = {}
    for node, answer in answers.items():
        failed |= {run: f"{node}: {why}" for run, why in answer.kept.items()}
    kept, removed = list(plan.kept), []
    for run in old:
        if run in failed:
            kept.append(Kept(run=run, why=failed[run]))
        elif not errors:
            records.remove(nodes.cluster.name, run)
            removed.append(run)
    return Pruned(removed=tuple(removed), kept=tuple(kept), errors=errors)


def _why_wanted(run: ListedRun) -> str:
    """Return why an old run may still be wanted."""
    if run.name:
        return NAMED
    return RECENT if time.time() - (run.began or 0.0) < SETTLED else ""


def _resumed(records: Records, old: set[str]) -> dict[str, str]:
    """Return which of old runs a run that stays goes back to, and why they stay with it."""
    resumed = {one.run: one.resumed.run if one.resumed else "" for one in records.all()}
    found: dict[str, str] = {}
    for run in resumed.keys() - old:
        after = run
        while (before := resumed.get(after, "")) in old - found.keys():
            found[before] = f"{after} was resumed from it"
            after = before
    return found


def _why_kept(
    nodes: Nodes, records: Records, view: RunStatus | None, record: RunRecord | None
) -> str:
    """Return why a run may not have ended; empty if it has."""
    going = [answer.node.name for answer in view.nodes if not _over(answer)] if view else []
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


def _over(answer: NodeAnswer) -> bool:
    """Tell whether nothing of the run can live there: after a reboot nothing does."""
    return answer.end is not None or (answer.rebooted and answer.state == "lost")
