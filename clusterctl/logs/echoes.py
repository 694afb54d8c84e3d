"""Says what stands behind failures that are all echoes.

That is a node that was lost, a rank that had raised an exception, one that had exited with 0, or
one that did not come to a collective, in this order.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.logs import known_errors, watchdog
from clusterctl.logs.excerpt import without_noise
from clusterctl.node.printed_cause import last_line
from clusterctl.node.printed_error import WAITED, PrintedError, all_errors, last_error, plain

if TYPE_CHECKING:
    from clusterctl.logs.first_cause import FirstCause, NodeReport

WAITING_SECONDS = 15.0
"""Exceptions that a rank printed later than this after the first echo came of its stop."""
_CAME = "its lines before that collective tell what it did; if it only needs longer, raise timeout="
NOT_THERE = f"{_CAME} of init_process_group"
_LEFT = (
    "if it gave up, let the script exit with another code than 0; if it was done, all ranks need"
    " as many steps"
)
_RAISED = "the script must end when that fails: the other ranks wait for this one"
_ASKED = re.compile(
    r"^(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|SignalException|CancelledError|Rendezvous\w+Error)\b"
    r"|\bkilled by signal: Terminated\b"
)
"""What is printed because the rank was asked to end."""


class _Rank(NamedTuple):
    """A rank that did not fail by itself, or did; with its last lines."""

    node: str
    rank: int
    lines: tuple[str, ...]
    times: Sequence[float]
    """When each line was written; empty: that is not known."""
    failed: bool

    def time_of(self, index: int) -> float | None:
        """Return when a line was written, if that is known."""
        return self.times[index] if index < len(self.times) else None

    @property
    def waits(self) -> bool:
        """It waited for another one itself."""
        return any(WAITED.search(line) for line in self.lines)


def behind_echoes(reports: Sequence[NodeReport], echoes: Sequence[FirstCause]) -> FirstCause | None:
    """Return what all these failures are echoes of; None: nothing tells."""
    first = min(echoes, key=lambda cause: cause.time)
    lost = _lost(reports, echoes, first)
    if lost is not None:
        return lost
    failed = {(cause.node, cause.rank) for cause in echoes}
    known = (rank for report in reports for rank in _ranks(report, failed))
    ranks = sorted(known, key=lambda rank: rank.rank)
    waited = any(known_errors.has_waited(cause.lines) for cause in echoes)
    raised = _raised(ranks, first, waited=waited) or _left(reports, first)
    if raised is not None or not waited:
        return raised
    return _behind(ranks, first) or _absent(ranks, first)


def _lost(
    reports: Sequence[NodeReport], echoes: Sequence[FirstCause], first: FirstCause
) -> FirstCause | None:
    """Return the loss of a node that fell silent, was rebooted, or has no supervisor."""
    alive = {cause.node for cause in echoes}
    gone = {report.node: report.gone for report in reports if report.gone}
    cut_off = _cut_off(reports)
    found: list[FirstCause] = []
    for report in reports:
        for event in report.events:
            node = str(event.get("peer"))
            if event.get("kind") != "peer-silent":
                continue
            if node not in alive or cut_off(node, report.node):
                words = [f"{report.node} lost the connection to it: {event.get('message')}"]
                words += filter(None, [gone.pop(node, "")])
                since = float(event.get("since") or 0.0) - report.clock[0]
                found.append(_loss(node, "; ".join(words), since or first.time, first))
    found += [
        _loss(node, f"{why}, and other nodes lost the connection to it", first.time, first)
        for node, why in gone.items()
        if node not in alive
    ]
    return min(found, key=lambda cause: cause.time, default=None)


def _peers(report: NodeReport, kind: str) -> set[str]:
    return {str(event.get("peer")) for event in report.events if event.get("kind") == kind}


def joined_peers(report: NodeReport) -> set[str]:
    """Return the nodes that a node was connected to."""
    return _peers(report, "peer-joined")


def _cut_off(reports: Sequence[NodeReport]) -> Callable[[str, str], bool]:
    """Return what tells whether a node had lost all others, and `by` had not, or fewer lost it."""
    silent = {one.node: _peers(one, "peer-silent") | _peers(one, "peer-lost") for one in reports}
    lost_by = Counter(peer for peers in silent.values() for peer in peers)
    alone = {
        one.node for one in reports if silent[one.node] and silent[one.node] >= joined_peers(one)
    }
    return lambda node, by: node in alone and (by not in alone or lost_by[node] > lost_by[by])


def _loss(node: str, message: str, time: float, first: FirstCause) -> FirstCause:
    named = shlex.quote(node)
    return replace(
        first,
        node=node,
        rank=None,
        time=time,
        kind="node-lost",
        exit_code=None,
        signal=None,
        message=message,
        remedy=f"clusterctl check --nodes {named}; to run without it: --exclude {named}",
        lines=(),
    )


def _ranks(report: NodeReport, failed: set[tuple[str, int | None]]) -> Iterator[_Rank]:
    """Yield the ranks of a node, those too that printed nothing."""
    ended = {event.get("rank"): event for event in report.events if event["kind"] == "rank-ended"}
    for rank in sorted({*report.last_lines, *ended} - {None}, key=lambda rank: rank or 0):
        end: Mapping[str, Any] = ended.get(rank, {})
        if rank is None or (end.get("exit_code") == 0 and not end.get("signal")):
            continue
        times = report.times.get(rank, ())
        lines = tuple(report.last_lines.get(rank, ()))
        yield _Rank(report.node, rank, lines, times, (report.node, rank) in failed)


def _raised(ranks: Sequence[_Rank], first: FirstCause, *, waited: bool) -> FirstCause | None:
    """Return the exception of a rank that was stopped: it was exiting, or went on without it."""
    for rank in ranks:
        error = last_error(rank.lines)
        if not rank.failed and error.final and _may_be_cause(rank, error, first):
            message = f"{error.line} (it was still exiting when it was stopped)"
            return _of_rank(rank, first, message, known_errors.remedy_for(rank.lines), error.at)
    if not waited:
        return None
    for rank in ranks:
        errors = [error for error in all_errors(rank.lines) if _may_be_cause(rank, error, first)]
        if errors and not rank.failed:
            time = rank.time_of(errors[-1].at)
            when = f" at {datetime.fromtimestamp(time, UTC):%H:%M:%S} UTC" if time else ""
            message = (
                f"it was alive, and had printed {errors[-1].line}{when}; {_name(first)} waited"
                f" for it: {known_errors.error_line(first.lines)}"
            )
            remedy = known_errors.remedy_for([errors[-1].line]) or _RAISED
            return _of_rank(rank, first, message, remedy, errors[-1].at)
    return None


def _left(reports: Sequence[NodeReport], first: FirstCause) -> FirstCause | None:
    """Return the rank that had exited with 0 before the others lost a connection."""
    ends = [
        (float(event.get("time") or 0.0) - report.clock[0], report, event.get("rank"))
        for report in reports
        for event in report.events
        if event.get("kind") == "rank-ended"
        and event.get("exit_code") == 0
        and not event.get("signal")
        and not event.get("ordered")
    ]
    time, report, rank = min(ends, key=lambda end: end[0], default=(first.time, None, None))
    if report is None or rank is None or time >= first.time:
        return None
    lines = tuple(report.last_lines.get(rank, ()))
    when = f"{first.time - time:.1f} s before {_name(first)} failed without it"
    last = last_line(without_noise(lines))
    message = f"exited with 0: {last} ({when})" if last else f"exited with 0, {when}"
    return _of_rank(_Rank(report.node, rank, lines, (), failed=False), first, message, _LEFT)


def _may_be_cause(rank: _Rank, error: PrintedError, first: FirstCause) -> bool:
    if not error.line or error.echo or error.side or _ASKED.search(plain(error.line)):
        return False
    time = rank.time_of(error.at)
    return time is None or time <= first.time + WAITING_SECONDS


def _behind(ranks: Sequence[_Rank], first: FirstCause) -> FirstCause | None:
    """Return the rank that was behind when NCCL's watchdog ended the others."""
    known = {rank.rank: rank for rank in ranks}
    found = watchdog.behind(
        {rank: each.lines for rank, each in known.items()},
        {rank: each.node for rank, each in known.items()},
    )
    if found is None:
        return None
    cause = _of_rank(known[found.ranks[0]], first, found.message, found.remedy or NOT_THERE)
    also = (f"{known[rank].node}:{rank}" for rank in found.ranks[1:])
    return replace(cause, also=tuple(sorted(also)))


def _absent(ranks: Sequence[_Rank], first: FirstCause) -> FirstCause | None:
    """Return the rank that did not come to the collective in which others waited."""
    absent = [rank for rank in ranks if not rank.failed and not rank.waits]
    if not absent:
        return None
    one = absent[0]
    message = f"it did not come to the collective in which {_name(first)} waited"
    last = last_line(without_noise(one.lines))
    if last:
        time = one.time_of(len(one.lines) - 1)
        before = f" {first.time - time:.0f} s before" if time and time < first.time else ""
        message += f"; it was alive and printed last{before}: {last}"
    found = _of_rank(one, first, message, NOT_THERE)
    return replace(found, also=tuple(sorted(f"{rank.node}:{rank.rank}" for rank in absent[1:])))


def _of_rank(
    rank: _Rank, first: FirstCause, message: str, remedy: str, last: int | None = None
) -> FirstCause:
    lines = rank.lines if last is None else rank.lines[: last + 1]
    return replace(
        first,
        node=rank.node,
        rank=rank.rank,
        time=first.time,
        kind="exit",
        exit_code=first.exit_code if first.signal is None else None,
        signal=None,
        message=message,
        remedy=remedy,
        lines=without_noise(lines),
    )


def _name(cause: FirstCause) -> str:
    return cause.node if cause.rank is None else f"rank {cause.rank} of {cause.node}"
