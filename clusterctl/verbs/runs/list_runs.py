"""Lists the runs of a cluster, from the records of this machine and from the nodes."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.errors import OPERATION, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import BadRange, expand_hosts
from clusterctl.model.node_run import Resumed
from clusterctl.model.run_record import RunEnd
from clusterctl.node.run.operations.node_run import CLEARED, CLEARED_UP
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass
from clusterctl.verbs.moment import moment
from clusterctl.verbs.rpc import Nodes
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.find_run import discover, launches
from clusterctl.verbs.runs.node_answers import find_cause
from clusterctl.verbs.runs.proof import has_key, proven_record
from clusterctl.verbs.runs.records import Claim, Records, RunRecord
from clusterctl.verbs.runs.run_id import short_ids
from clusterctl.verbs.runs.run_state import LIVE
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from clusterctl.wire import SCHEMA, plain

See = Callable[[RunRecord, RunStatus], object]
_BAD = frozenset({"failed", "lost"})
MOST_CLAIMED = 1000
"""Runs of a node, the newest, of which records are rebuilt."""
_NODES_AT_ONCE, _RUNS_AT_ONCE = 8, 100
"""Of how many nodes, and for how many runs each, proofs are asked at once: one may have 20 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A line of `clusterctl runs`."""

    run: str
    cluster: str
    state: str
    """A run's state, or `unknown`."""
    began: float | None
    nodes: tuple[str, ...]
    command: tuple[str, ...]
    verified: bool
    """This machine launched it, or proved it; false: only its nodes claim what it runs."""
    short: str = ""
    """The end of its id, which no other run has: commands take it too."""
    name: str = ""
    """The user's name for it, which its resumes inherit."""
    ended_by: str = ""
    """Who ended it; if the launch was refused, what refused it: `busy`, `start`, ..."""
    checkpoint: str = ""
    """The checkpoint that it was resumed from."""
    parent: str = ""
    """The run that it resumes."""
    ended: float | None = None
    """When it was over; null while it lives, or if that is not known."""
    reason: str = ""
    """Why it ended so, in words; empty if it finished or lives."""
    step: int | None = None
    """The step that its ranks printed last."""
    total: int | None = None
    """All steps of it, if its ranks print that."""
    attempt: int = 1
    """Which attempt of a run that restarts it is, or was the last one."""
    attempts: int = 1
    """The most that it may have."""
    commit: str = ""
    """The git commit of its code; empty: there was none, or it is not known."""
    dirty: bool = False
    """The code had changes that are not in the commit."""

    def __str__(self) -> str:
        """Return its id, state and command in a line, safe to print."""
        named = f" ({self.name})" if self.name else ""
        return strip_controls(f"{self.run}{named}: {self.state}: {shlex.join(self.command)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """All runs, the newest first."""

    runs: tuple[ListedRun, ...]
    errors: tuple[NodeError, ...]
    """Nodes that did not answer."""
    rebuilt: tuple[str, ...] = ()
    """Runs whose record was rebuilt from what the nodes know."""

    def __iter__(self) -> Iterator[ListedRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `runs --json` prints."""
        return {
            "schema": SCHEMA,
            "runs": plain(self.runs),
            "troubles": [error.document() for error in self.errors],
            "rebuilt": list(self.rebuilt),
        }


def runs(
    nodes: Nodes, records: Records, *, rebuild: bool = False, see: See = lambda *_: None
) -> RunList:
    """List the runs that the records or the nodes know.

    Args:
        see: called with the record of each run that has one, and with what its nodes tell of it.
        rebuild: write a record of each run that only the nodes know, or that is unverified yet.
    """
    found = discover(nodes)
    known = {record.run: record for record in records.all(nodes.cluster.name)}
    rebuilt = []
    if rebuild:
        unproven = list(_to_rebuild(found.runs, known))
        proven = _proven(nodes, [view.run for view in unproven], records.root)
        for view in unproven:
            record = _record(nodes.cluster, view, proven.get(view.run))
            if record != known.get(view.run):
                records.write(record)
                rebuilt.append(view.run)
            known[view.run] = record
    seen = {view.run: view for view in found.runs}
    silent = {one.node: one for one in found.errors}
    unasked: dict[str, NodeError] = {}
    for run in known.keys() - seen.keys():  # no node that answers knows it
        lacking = _lacking(known[run], nodes.cluster)
        if lacking and records.end(known[run]) is None:
            unasked |= lacking
        seen[run] = view_of(run, known[run].cluster, {}, silent | lacking)
    listed = [_line(nodes, records, known.get(run), seen[run], see) for run in {**known, **seen}]
    errors = (*found.errors, *unasked.values())
    return RunList(runs=newest_first(listed, records), errors=errors, rebuilt=tuple(rebuilt))


def _lacking(record: RunRecord, now: Cluster) -> dict[str, NodeError]:
    """Return the nodes of a run that the inventory lacks, such as those that were renamed since.

    They were not asked, so nothing tells that the run was lost.
    """
    names = {node.name for node in now.nodes}
    why = f"not asked: {now.file} lacks it"
    hint = f"clusterctl status {record.run}"
    return {
        node.name: NodeError("unasked", OPERATION, why, hint, node=node.name)
        for node in record.cluster.nodes
        if node.name not in names
    }


def _to_rebuild(views: Iterable[RunStatus], known: Mapping[str, RunRecord]) -> Iterator[RunStatus]:
    """Yield the runs without a record of this machine's own; of one node alone not endlessly many.

    A node may invent runs, and each record is a folder here.
    """
    claims = {run: record for run, record in known.items() if record.discovered}
    found = {view.run for view in views}
    counts = Counter(
        node.name for run in claims.keys() - found for node in claims[run].cluster.nodes
    )
    for view in views:
        if view.run not in known or view.run in claims:
            counts.update(view.node_runs.keys())
            if any(counts[node] <= MOST_CLAIMED for node in view.node_runs):
                yield view


def newest_first(listed: Iterable[ListedRun], records: Records) -> tuple[ListedRun, ...]:
    """Return the runs, the newest first, with the short ids that they have on this machine."""
    runs = sorted(listed, key=lambda one: (one.began or 0.0, one.run), reverse=True)
    others = {*records.ids(), *(one.name for one in runs)} - {""}
    shorts = short_ids([one.run for one in runs], others)
    return tuple(replace(one, short=shorts[one.run]) for one in runs)


def _proven(nodes: Nodes, runs: Sequence[str], root: Path) -> dict[str, RunRecord]:
    """Return the records of those runs that this machine can prove.

    Each node may have each of them: so few are asked at once, and only for what is missing.
    """
    proven: dict[str, RunRecord] = {}
    if not has_key(root):
        return proven
    cluster = nodes.cluster
    for first in range(0, len(cluster.nodes), _NODES_AT_ONCE):
        some = cluster.nodes[first : first + _NODES_AT_ONCE]
        missing = [run for run in runs if run not in proven]
        for begin in range(0, len(missing), _RUNS_AT_ONCE):
            named = missing[begin : begin + _RUNS_AT_ONCE]
            for run, launched in launches(nodes, some, named):
                record = proven_record(launched, run, cluster, root)
                if run in named and record is not None:
                    proven[run] = record
    return proven


def _record(cluster: Cluster, view: RunStatus, proven: RunRecord | None) -> RunRecord:
    """Rebuild a run's record from what its nodes keep: the launch's own with a proof, else claims.

    Claims steer nothing that runs: the job is the inventory's, without a command.
    """
    node_runs = view.node_runs
    took_part = sorted(
        (node for node in cluster.nodes if node.name in node_runs),
        key=lambda node: node_runs[node.name].rank0 or 0,
    )
    if proven is not None:
        known = {node.name for node in proven.cluster.nodes}
        joined = (node for node in took_part if node.name not in known)
        all_nodes = (*proven.cluster.nodes, *joined)
        return replace(proven, cluster=proven.cluster.with_nodes(all_nodes))
    name = _agreed(one.name for one in node_runs.values())
    return RunRecord(
        run=view.run,
        began=view.began or 0.0,
        cluster=replace(cluster.with_nodes(tuple(took_part)), job=replace(cluster.job, command=())),
        plan={"world_size": _agreed(one.world_size or None for one in node_runs.values())},
        resumed=_ancestor(cluster, view),
        options={"name": name} if name else {},
        discovered=True,
        claims=tuple(
            Claim(node=node.name, command=node_runs[node.name].command) for node in took_part
        ),
    )


def _ancestor(cluster: Cluster, view: RunStatus) -> Resumed | None:
    """Return the run and the checkpoint that all nodes claim that it was resumed from."""
    claims = (
        one.resumed
        and Resumed(run=one.resumed.run, checkpoint=one.resumed.checkpoint, step=one.resumed.step)
        for one in view.node_runs.values()
    )
    found: Resumed | None = _agreed(claims)
    return found if found and run_id.cluster_of(found.run) == cluster.name else None


def _agreed(values: Iterable[Any]) -> Any:  # noqa: ANN401  (what nodes answer)
    """Return the value that all nodes claim; None if they differ."""
    first, *others = values
    return first if all(other == first for other in others) else None


def _line(
    nodes: Nodes, records: Records, record: RunRecord | None, view: RunStatus, see: See
) -> ListedRun:
    if record is None:
        return claimed_line(_judged(nodes, view))
    end = records.end(record)
    # A node outside the run need not answer.
    took_part = frozenset(node.name for node in record.cluster.nodes)
    took_part |= view.node_runs.keys()  # some may have joined since
    answers = tuple(answer for answer in view.nodes if answer.node.name in took_part)
    view = _judged(nodes, replace(view, nodes=answers, remembered=end)).with_remembered(end)
    see(record, view)
    return recorded_line(record, view, end)


def claimed_line(view: RunStatus) -> ListedRun:
    """Return the line of a run that only its nodes know."""
    return ListedRun(
        run=view.run,
        cluster=view.cluster,
        state=view.state,
        began=view.began,
        nodes=tuple(view.node_runs),
        command=view.command,
        verified=False,
        name=view.name,
        **_progressed(view, view.remembered),
    )


def recorded_line(record: RunRecord, view: RunStatus | None, end: RunEnd | None) -> ListedRun:
    """Return the line of a run with a record.

    Args:
        view: what its nodes say; None: they were not asked, or know nothing.
        end: how it ended, as this machine remembers it.
    """
    end = end or RunEnd()
    return ListedRun(
        run=record.run,
        cluster=record.cluster.name,
        state=view.state if view else end.state or "unknown",
        ended_by=view.ended_by if view else end.ended_by,
        began=record.began,
        nodes=_names(record, view),
        command=record.cluster.job.command or next((claim.command for claim in record.claims), ()),
        verified=not record.discovered,
        name=str(record.options.get("name") or (view.name if view else "")),
        commit=record.commit,
        dirty=record.dirty,
        **_progressed(view, end, record.resumed),
    )


def _progressed(
    view: RunStatus | None, end: RunEnd | None, resumed: Resumed | None = None
) -> dict[str, Any]:
    """Return where a run came from, how far it got, when it ended and why."""
    end, resumed = end or RunEnd(), resumed or (view.resumed if view else None)
    progress = view.progress if view else None
    over = view is None or not (view.live or view.state == "unreachable")
    return {
        "parent": resumed.run if resumed else "",
        "checkpoint": resumed.checkpoint if resumed else "",
        "step": progress.step if progress else None,
        "total": progress.total if progress else None,
        "attempt": view.attempt if view else 1,
        "attempts": view.attempts if view else 1,
        "ended": ((view.ended if view else None) or end.ended) if over else None,
        "reason": reason_of(view, end) if over else "",
    }


def reason_of(view: RunStatus | None, end: RunEnd | None) -> str:
    """Return why a run that is over ended as it did, in one line; empty if it finished."""
    end = end or RunEnd()
    if (view.state if view else end.state) == "finished":
        return ""
    cause = (view.first_cause if view else None) or end.first_cause
    if cause:
        rank = "" if cause.rank is None else f", rank {cause.rank}"
        text = f"{cause.node or '?'}{rank}: {cause.message}"
    else:
        asked = view.nodes if view else ()
        ends = [(one.node.name, one.end) for one in asked if one.end and not one.left_out]
        own = [(node, one) for node, one in ends if one.by != "peer" and one.reason]
        if all(one.reason.endswith((CLEARED, CLEARED_UP)) for _, one in own):
            # What is left of a lost node is stopped later, to clear up: its peers knew why.
            own = [(node, one) for node, one in ends if one.by == "peer" and one.reason] or own
        own.sort(key=lambda each: each[1].time or 0.0)
        alike = len({one.reason for _, one in own}) == 1
        told = [one.reason if alike else f"{node}: {one.reason}" for node, one in own]
        text = end.message or next(iter(told), "")
    return next(iter(text.strip().splitlines()), "")


def _names(record: RunRecord, view: RunStatus | None) -> tuple[str, ...]:
    """Return the nodes of a run, those too that have joined since this machine heard of it."""
    names = [node.name for node in record.cluster.nodes]
    return tuple(dict.fromkeys([*names, *(view.node_runs if view else ())]))


def _judged(nodes: Nodes, view: RunStatus) -> RunStatus:
    """Ask the nodes for the first cause if it decides the state, as `status` does."""
    if not view.contested:
        return view
    took_part = nodes.cluster.with_nodes(tuple(answer.node for answer in view.nodes))
    return replace(view, first_cause=find_cause(nodes, took_part, view))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions, of which all must hold; None and false: any run."""

    since: str | None = None
    """It began, or was still running, since then."""
    name: str | None = None
    """This is its name, or a part of it."""
    nodes: str | None = None
    """It ran on one of these nodes: names and ranges."""
    failed: bool = False
    """It failed, was lost, or its launch was refused."""

    def pick(self, listed: RunList) -> RunList:
        """Return the list without other runs; raise UsageError if a condition cannot be read."""
        since = None if self.since is None else moment(self.since, time.time())
        try:
            nodes = None if self.nodes is None else frozenset(expand_hosts(self.nodes))
        except BadRange as error:
            raise UsageError(f"--nodes: {error}") from error

        def picks(run: ListedRun) -> bool:
            return (
                (since is None or run.state in LIVE or (run.ended or run.began or 0.0) >= since)
                and (self.name is None or self.name in run.name)
                and (nodes is None or not nodes.isdisjoint(run.nodes))
                and (not self.failed or run.state in _BAD)
            )

        return replace(listed, runs=tuple(filter(picks, listed.runs)))
