"""What happened in a run and when, in words, from the events of its nodes. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.checks.wording import counted
from clusterctl.safe_text import strip_controls
from clusterctl.values import dataclass
from clusterctl.verbs.quarantine.entries import Entry
from clusterctl.verbs.runs.records import RunRecord

TOGETHER_SECONDS = 30.0
"""The same on several nodes within this time is one line."""
MOST_EVENTS = 2000
"""Of one node that are kept."""
_SHOWN, _LARGEST = 300, 1e11
"""Characters of what an event says, and its largest number: a time that a calendar has."""
_STOPPED_BY = re.compile(r"stop: stopped by (\S+ on \S+)$")

Events = Mapping[str, Sequence[Mapping[str, Any]]]
"""By node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened."""

    time: float
    """Seconds since 1970, by the master's clock."""
    kind: str
    """`launched`, `quarantined`, or the kind of an event of the nodes."""
    what: str
    """In words."""
    nodes: tuple[str, ...] = ()
    """On which nodes; none: on the controller."""
    by: str = ""
    """The user who did it; empty: not recorded, or no user did."""


def timeline(
    record: RunRecord | None, events: Events, quarantine: Iterable[Entry] = ()
) -> tuple[Moment, ...]:
    """Return what happened, the earliest first; what several nodes did together is one moment."""
    found: list[Moment] = []
    if record is not None:
        found.append(_launched(record))
        found += (
            Moment(time=one.since, kind="quarantined", nodes=(one.node,),
                   what=f"put into quarantine: {one.reason}")
            for one in quarantine
            if one.run == record.run
        )  # fmt: skip
    for node, told in events.items():
        for when, event in _timed(told):
            if what := words(event):
                kind = str(event["kind"])
                who = _STOPPED_BY.match(what)
                by = who[1] if who and kind == "stop-ordered" else ""
                found.append(Moment(time=when, kind=kind, what=what, nodes=(node,), by=by))
    return _folded(sorted(found, key=lambda one: one.time))


def attempts_began(events: Events) -> dict[int, float]:
    """Return when each attempt began on the node that began first, by the master's clock."""
    began: dict[int, float] = {}
    for time, event in (one for told in events.values() for one in _timed(told)):
        if event.get("kind") == "supervisor-up":
            attempt = max(1, int(_number(event, "attempt")))
            began[attempt] = min(began.get(attempt, time), time)
    return began


def _timed(told: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield the events of a node, each with its time by the master's clock."""
    clocks = (_number(one, "offset_s") for one in told if one.get("kind") == "clock")
    ahead = next(clocks, 0.0)
    for event in told:
        if event.get("kind") == "clock":
            ahead = _number(event, "offset_s")
        yield _number(event, "time") - ahead, event


def paused_seconds(events: Events) -> float:
    """Return the time from the end of each attempt to the begin of the next, on the first node."""
    paused, ended = 0.0, 0.0
    for event in next(iter(events.values()), ()):
        kind, time = event.get("kind"), _number(event, "time")
        if kind == "end":
            ended = time
        elif kind == "supervisor-up" and ended and _number(event, "attempt") > 1:
            paused, ended = paused + max(0.0, time - ended), 0.0
    return paused


def _launched(record: RunRecord) -> Moment:
    host = record.plan.get("controller")
    by = record.by or (f"unknown user on {host}" if isinstance(host, str) and host else "")
    what = f"launched on {counted(len(record.cluster.nodes), 'node')}"
    if record.resumed and record.resumed.run:
        what = f"resumed {record.resumed.run} from {record.resumed.checkpoint or 'its beginning'}"
    return Moment(time=record.began, kind="launched", what=what, by=by)


def _folded(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    folded: list[Moment] = []
    places: dict[tuple[str, str, str], int] = {}
    for one in moments:
        key = (one.kind, one.what, one.by)
        at = places.get(key)
        if at is not None and one.time - folded[at].time <= TOGETHER_SECONDS:
            nodes = tuple(dict.fromkeys((*folded[at].nodes, *one.nodes)))
            folded[at] = replace(folded[at], nodes=nodes)
        else:
            places[key] = len(folded)
            folded.append(one)
    return tuple(folded)


def words(event: Mapping[str, Any]) -> str:
    """Return what an event means, in words, safe to print; empty if it is of no interest."""
    shape = _WORDS.get(str(event.get("kind")))
    return strip_controls(" ".join(shape(event).split()))[:_SHOWN] if shape else ""


def _number(event: Mapping[str, Any], name: str) -> float:
    value = event.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else 0.0


def _text(event: Mapping[str, Any], name: str) -> str:
    return str(event.get(name) or "")[:_SHOWN]


def _message(event: Mapping[str, Any]) -> str:
    return _text(event, "message") or str(event["kind"])


def _up(event: Mapping[str, Any]) -> str:
    attempt = int(_number(event, "attempt"))
    return f"attempt {attempt} begins" if attempt > 1 else "the supervisor started"


def _ended(who: str) -> Callable[[Mapping[str, Any]], str]:
    def shape(event: Mapping[str, Any]) -> str:
        if event.get("ordered") or event.get("exit_code") == 0:
            return ""
        rank = f"{who} {event.get('rank')}" if who == "rank" else who
        if event.get("signal"):
            killed = ", out of memory" if event.get("oom_kills") else ""
            return f"{rank} was ended by signal {event.get('signal')}{killed}"
        return f"{rank} exited with {event.get('exit_code')}"

    return shape


def _hung(event: Mapping[str, Any]) -> str:
    return f"hung: no rank has shown a sign of life for {_number(event, 'quiet_s'):.0f} s"


def _straggler(event: Mapping[str, Any]) -> str:
    reason = f": {_text(event, 'reason')}" if event.get("reason") else ""
    return f"rank {event.get('rank')} keeps the others waiting{reason}"


def _again(event: Mapping[str, Any]) -> str:
    without = event.get("without")
    names = ", ".join(map(str, without)) if isinstance(without, list) else ""
    left_out = f", without {names}" if names else ""
    start = _text(event, "checkpoint") or "the beginning"
    number, most = event.get("attempt"), event.get("of")
    return f"attempt {number} of {most} follows, from {start}{left_out}: {_text(event, 'why')}"


def _end(event: Mapping[str, Any]) -> str:
    reason = _text(event, "reason")
    return _text(event, "state") + (f": {reason}" if reason else "")


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "supervisor-up": _up,
    "rank-started": lambda _: "ranks started",
    "rank-ended": _ended("rank"),
    "launcher-ended": _ended("the launcher"),
    "stop-ordered": lambda event: f"stop: {_message(event)}",
    "peer-bad-end": lambda event: f"the run fails on {_text(event, 'peer')}: {_message(event)}",
    "peer-lost": lambda event: f"lost {_text(event, 'peer')}: {_message(event)}",
    "peer-left": lambda event: f"continues without {_text(event, 'peer')}: {_message(event)}",
    "hung": _hung,
    "running-again": lambda _: "a rank has shown a sign of life: not hung",
    "straggler": _straggler,
    "straggler-over": lambda event: f"rank {event.get('rank')} keeps up again",
    "again": _again,
    "end": _end,
    "before": lambda _: "job.before runs",
    "log-dropped": _message,
    "log-lost": _message,
    "notify-failed": lambda event: (
        f"could not tell {_text(event, 'receiver')} of the event {_text(event, 'event')}:"
        f" {_message(event)}"
    ),
    "guard-died": lambda _: "the supervisor's guard died",
    **dict.fromkeys(
        (
            "start-timeout", "late", "supervisor-died", "other-world", "before-failed",
            "after-failed", "dump-failed", "room-low",
        ),
        _message,
    ),
}  # fmt: skip
