"""Finds the first cause: the earliest failure on any node that is not a consequence of another.

Ends that clusterctl ordered do not count. A secondary failure is a rank that failed because another
one exited or did not come, or that the launcher stopped after another. If there is no other
failure, what they are echoes of is looked for; only if nothing tells, the earliest counts.
Times are on the master's clock; ends within its error are named in `also`. If the events of a node
cannot be read, the failure that it reported to the other nodes counts.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from clusterctl.logs import known_errors
from clusterctl.logs.echoes import behind_echoes, joined_peers
from clusterctl.logs.excerpt import without_noise
from clusterctl.node.launcher_reaction import is_reaction
from clusterctl.node.printed_cause import last_line
from clusterctl.values import dataclass

CauseKind = Literal[
    "exit", "signal", "launcher", "node-lost", "start-timeout", "supervisor", "world", "hang",
    "before",
]  # fmt: skip

FAILED = 1
SIGNAL_BASE = 128
SLOW = 2.0
"""Seconds of `env_init` that are worth a word."""
_OWN_KIND = {
    "rank": "rank-ended",
    "launcher": "launcher-ended",
    "supervisor": "supervisor-died",
    "lost": "peer-lost",
    "before": "before-failed",
}
"""Reason for the end of a node run, as its peers record it → the node's own event."""
NEAR = 30.0  # seconds between a full disk of the logs and the end of a rank
SLOW_START = "its env_init took"
EACH_OTHER = "lost the connection to each other"
"""Of two nodes, neither of which is known to be the one that was cut off."""
MORE_TIME = "more time: --start-timeout S"
LATE_REMEDY = f"clusterctl check tries the port from every node; {MORE_TIME}"
_NOT_FOUND = re.compile(r"([\w./+-]+): (?:command )?not found\Z")
"""A shell's last word, such as `run.sh: line 2: torchrun: command not found`."""
_INSTALL = (
    "install {0} on the node (clusterctl setup), or let `env_init:` activate the environment"
    " that has it"
)
_COULD_NOT_START = {126: "was found but cannot be run", 127: "does not exist on the node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one node reports about the end of a run."""

    node: str
    events: Sequence[Mapping[str, Any]] = ()
    """Its events.jsonl."""
    last_lines: Mapping[int | None, Sequence[str]] = field(default_factory=dict)
    """The last log lines of each rank; under None, those of the launcher."""
    times: Mapping[int | None, Sequence[float]] = field(default_factory=dict)
    """When each of these lines was written, on the master's clock, if that is known."""
    room_low_at: float = float("-inf")
    """When little room was left for its logs, on its own clock."""
    env_init_s: float = 0.0
    """How long its `env_init` took."""
    env_init_said: str = ""
    """The last line that it printed."""
    gone: str = ""
    """Why no supervisor recorded an end there; empty: one did, or the node did not answer."""

    @property
    def clock(self) -> tuple[float, float]:
        """Seconds that this clock is ahead of the master's, and the error of this offset."""
        for event in reversed(self.events):
            if event.get("kind") == "clock":
                return _number(event, "offset_s"), _number(event, "error_s")
        return 0.0, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCause:
    """Why a run failed."""

    node: str
    rank: int | None = None
    time: float
    """On the master's clock."""
    kind: CauseKind
    exit_code: int | None = None
    """The rank's own; None if a signal killed it or if it is unknown."""
    signal: int | None = None
    message: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
    """The last lines it printed."""
    also: tuple[str, ...] = ()
    """`host:rank` of ends at the same time, as far as the clocks can tell."""

    @property
    def exit_status(self) -> int:
        """The exit code of launch: the rank's own code, 128+n for a signal."""
        if self.signal is not None:
            return SIGNAL_BASE + self.signal
        return self.exit_code or FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    cause: FirstCause
    by: str
    """The node that reported it."""
    error: float
    secondary: bool

    def may_be_as_early_as(self, other: _End) -> bool:
        if self.cause.node == other.cause.node:
            return self.cause.time <= other.cause.time
        return self.cause.time - self.error <= other.cause.time + other.error


def first_cause(reports: Iterable[NodeReport], master: str = "") -> FirstCause | None:
    """Return the earliest failure that is no consequence of another; None if none failed.

    `master`: the name of the node that all others are linked to; empty: it is not known.
    """
    known = _first_hand(tuple(reports), master)
    slow = {report.node: report for report in known if report.env_init_s >= SLOW}
    own = [_in_env_init(end, slow) for report in known for end in _ends(report)]
    heard = {end.cause.node for end in own if end.cause.kind != "node-lost"}
    ends = own + [end for r in known for end in _reported(r) if end.cause.node not in heard]
    apart = {end.cause.node for end in ends if end.cause.kind == "start-timeout"} | _left(known)
    # What a node found that came too late, or without which the run continued, is no news.
    ends = [end for end in ends if not (end.cause.kind == "node-lost" and end.by in apart)]
    ends = _without_cut_off(ends, known)
    if not ends:
        return None
    candidates = [end for end in ends if not end.secondary]
    behind = None if candidates else behind_echoes(known, [end.cause for end in ends])
    if behind is not None:
        return behind
    candidates = candidates or ends
    first = _of_either(min(candidates, key=lambda end: end.cause.time), candidates)
    also = {_name(end.cause) for end in candidates if end.may_be_as_early_as(first)}
    also.discard(_name(first.cause))
    message = first.cause.message
    gone = next((report.gone for report in known if report.node == first.cause.node), "")
    if gone and first.cause.kind == "node-lost":  # it answers again, and knows better
        message = f"{gone}; {message}"
    return replace(first.cause, message=message, also=tuple(sorted(also)))


def _first_hand(reports: tuple[NodeReport, ...], master: str) -> tuple[NodeReport, ...]:
    """Leave out what a node tells of others than the master, which it is not linked to.

    The master has noted what they told it. Only if its events are not known, others' words count.
    """
    if not any(report.node == master and report.events for report in reports):
        return reports

    def is_own(event: Mapping[str, Any]) -> bool:
        return event.get("kind") != "peer-bad-end" and event.get("peer") in (None, master)

    return tuple(
        one if one.node == master else replace(one, events=[e for e in one.events if is_own(e)])
        for one in reports
    )


def _left(reports: Iterable[NodeReport]) -> set[str]:
    """Return the nodes without which an elastic run continued, and which did not join again."""
    left: set[str] = set()
    for report in reports:
        for event in report.events:
            if event.get("kind") == "peer-left":
                left.add(str(event.get("peer")))
            elif event.get("kind") == "peer-joined":
                left.discard(str(event.get("peer")))
    return left


def _without_cut_off(ends: Sequence[_End], reports: Sequence[NodeReport]) -> list[_End]:
    """Leave out the losses that a node saw because it was cut off itself.

    More nodes lost it; of two that lost each other, it had lost all its peers, the other had not.
    """
    by: dict[str, set[str]] = {}
    lost: dict[str, set[str]] = {}
    for end in ends:
        if end.cause.kind == "node-lost":
            by.setdefault(end.cause.node, set()).add(end.by)
            lost.setdefault(end.by, set()).add(end.cause.node)
    for report in reports:  # silent in a run that ended before a silence counted as a loss
        for silent in (str(e.get("peer")) for e in report.events if e.get("kind") == "peer-silent"):
            by.setdefault(silent, set()).add(report.node)
            lost.setdefault(report.node, set()).add(silent)
    alone = {r.node for r in reports if r.node in lost and lost[r.node] >= joined_peers(r)}

    def was_cut_off(end: _End) -> bool:
        more = len(by.get(end.by, ())) - len(by[end.cause.node])
        return more > 0 or (more == 0 and end.by in alone and end.cause.node not in alone)

    return [end for end in ends if end.cause.kind != "node-lost" or not was_cut_off(end)]


def _of_either(first: _End, ends: Iterable[_End]) -> _End:
    """Say of two nodes that lost each other that nothing tells which of them was cut off."""
    node, other = first.cause.node, first.by
    if first.cause.kind != "node-lost" or all(
        (end.cause.kind, end.cause.node, end.by) != ("node-lost", other, node) for end in ends
    ):
        return first
    words = first.cause.message.partition(": ")[2]
    message = f"it and {other} {EACH_OTHER}: {words}; either may have been cut off"
    both = shlex.quote(",".join(sorted((node, other))))
    remedy = f"clusterctl check --nodes {both} tries the connection between them"
    return replace(first, cause=replace(first.cause, message=message, remedy=remedy))


def _in_env_init(end: _End, slow: Mapping[str, NodeReport]) -> _End:
    """Say of a node that came too late what it did meanwhile."""
    cause = end.cause
    if cause.kind != "start-timeout" or cause.node not in slow:
        return end
    node = slow[cause.node]
    message = f"{cause.message}: {SLOW_START} {node.env_init_s:.0f} s"
    if node.env_init_said:
        message += f", and printed last: {node.env_init_said}"
    remedy = f"a quicker env_init, or {MORE_TIME}"
    return replace(end, cause=replace(cause, message=message, remedy=remedy))


def _ends(report: NodeReport) -> list[_End]:
    offset, error = report.clock
    ends: list[_End] = []
    a_rank_failed = False
    unknown = _unknown_ends(report.events)
    for event in report.events:
        cause = _cause(report, event, offset)
        if cause is None:
            continue
        if cause.kind == "launcher" and a_rank_failed:
            continue  # the launcher ends because its rank did
        # Its launcher sent SIGTERM because a rank with a lost exit code had ended.
        after_unknown = event.get("kind") == "rank-ended" and is_reaction(
            event.get("signal"), _number(event, "time"), unknown
        )
        a_rank_failed |= cause.rank is not None and not after_unknown
        after_another = cause.signal == signal.SIGTERM and (bool(ends) or after_unknown)
        secondary = cause.kind not in ("node-lost", "start-timeout") and (
            known_errors.is_secondary(cause.lines) or after_another
        )
        ends.append(_End(cause=cause, by=report.node, error=error, secondary=secondary))
    return ends


def _unknown_ends(events: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return when ranks ended whose exit code is lost."""
    return [
        _number(event, "time")
        for event in events
        if event.get("kind") == "rank-ended"
        and not event.get("ordered")
        and event.get("exit_code") is None
        and not event.get("signal")
    ]


def _reported(report: NodeReport) -> list[_End]:
    """Return the failures that other nodes reported to this one, on this one's clock."""
    offset, error = report.clock
    ends: list[_End] = []
    for event in report.events:
        kind = _OWN_KIND.get(str(event.get("by")))
        peer, lost = event.get("peer"), event.get("lost")
        if event.get("kind") != "peer-bad-end" or not peer or not kind:
            continue
        if kind == "peer-lost" and not lost:
            continue  # an older version did not record it
        reported = {**event, "kind": kind, "peer": lost}
        cause = _cause(NodeReport(node=str(peer)), reported, offset)
        if cause is not None:
            ends.append(_End(cause=cause, by=report.node, error=error, secondary=False))
    return ends


def _cause(report: NodeReport, event: Mapping[str, Any], offset: float) -> FirstCause | None:
    """Return the cause that an event shows; None if it is no failure or was ordered."""
    kind = event.get("kind")
    if event.get("ordered"):
        return None
    if kind in ("peer-lost", "start-timeout", "supervisor-died", "before-failed"):
        return _cause_of_node(report, event, offset)
    code, number = event.get("exit_code"), event.get("signal")
    if kind not in ("rank-ended", "launcher-ended") or not (code or number):
        return None
    rank = event.get("rank") if kind == "rank-ended" else None
    lines = without_noise(report.last_lines.get(rank, ()))
    return FirstCause(
        node=report.node,
        rank=rank,
        time=_number(event, "time") - offset,
        kind="launcher" if kind == "launcher-ended" else "signal" if number else "exit",
        exit_code=code,
        signal=number,
        message=("the launcher " if rank is None and number else "")
        + _message(code, number, lines),
        remedy=_remedy(code, number, lines, event) or _full_disk(report, event, lines),
        lines=lines,
    )


def _cause_of_node(report: NodeReport, event: Mapping[str, Any], offset: float) -> FirstCause:
    """Return the cause if a whole node fails: it is lost, late, or without supervisor."""
    kind, time = event.get("kind"), _number(event, "time") - offset
    if kind == "peer-lost":
        lost = str(event.get("peer") or event.get("node") or "?")
        words = str(event.get("message") or "no further message from it")
        named = shlex.quote(lost)
        return FirstCause(
            node=lost,
            time=_number(event, "since", "time") - offset,
            kind="node-lost",
            message=f"{report.node} lost the connection to it: {words}",
            remedy=f"clusterctl check --nodes {named}; to run without it: --exclude {named}",
        )
    if kind == "start-timeout":
        return FirstCause(
            node=str(event.get("peer")),
            time=time,
            kind="start-timeout",
            message=str(event.get("message")),
            remedy=LATE_REMEDY,
        )
    if kind == "before-failed":
        message, remedy = str(event.get("message")), "correct job.before in the inventory"
        return FirstCause(
            node=report.node, time=time, kind="before", message=message, remedy=remedy
        )
    return FirstCause(
        node=report.node,
        time=time,
        kind="supervisor",
        message=str(event.get("message") or "the supervisor died"),
        remedy=known_errors.PERHAPS_OOM if "signal 9" in str(event.get("message")) else "",
    )


def _number(event: Mapping[str, Any], *names: str) -> float:
    """Return the first of these fields that the event has; 0 if it has none."""
    return next((float(event[name]) for name in names if event.get(name) is not None), 0.0)


def _message(code: int | None, number: int | None, lines: Sequence[str]) -> str:
    if number:
        how = f"was killed by {known_errors.signal_name(number)}"
    elif code in _COULD_NOT_START:
        how = f"exited with {code}: the command {_COULD_NOT_START[code]}"
    else:
        how = f"exited with {code}"
    exception = known_errors.exception_line(lines)
    if exception:
        return f"{how}: {exception}"
    last = last_line(lines)
    return f"{how}; its last line: {last}" if last else how


def _remedy(
    code: int | None, number: int | None, lines: Sequence[str], event: Mapping[str, Any]
) -> str:
    """Return the remedy; `event` tells what a rank that was killed had used up."""
    if code in _COULD_NOT_START and (missing := _NOT_FOUND.search(last_line(lines))):
        return _INSTALL.format(missing[1])
    oom_kills, cpu_limit_s = event.get("oom_kills"), event.get("cpu_limit_s")
    if number == signal.SIGKILL and oom_kills:
        return known_errors.OUT_OF_MEMORY
    known = known_errors.remedy_for(lines)
    if not known and cpu_limit_s and number in {signal.SIGKILL, signal.SIGXCPU}:
        return known_errors.CPU_LIMIT.format(cpu_limit_s)
    if known or number != signal.SIGKILL:
        return known
    return known_errors.PERHAPS_OOM if oom_kills is None else known_errors.NOT_OUT_OF_MEMORY


def _full_disk(report: NodeReport, event: Mapping[str, Any], lines: Sequence[str]) -> str:
    """Return what to do if the disk of the logs was full: then the last words are missing."""
    told = event.get("signal") or known_errors.exception_line(lines)
    near = abs(_number(event, "time") - report.room_low_at) < NEAR
    return known_errors.NO_ROOM_FOR_LOGS if near and not told else ""


def _name(cause: FirstCause) -> str:
    return cause.node if cause.rank is None else f"{cause.node}:{cause.rank}"
