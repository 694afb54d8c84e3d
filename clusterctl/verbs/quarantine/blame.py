"""Which nodes a run blames, by its first cause and by what its master noted. Pure."""

from __future__ import annotations

import signal

from clusterctl.logs.first_cause import EACH_OTHER, FirstCause
from clusterctl.model.node_run import SUPERVISOR_DIED
from clusterctl.model.run_record import RecordedCause
from clusterctl.node.printed_cause import cause_of
from clusterctl.node.restart.blame import LOST, faulty
from clusterctl.values import dataclass
from clusterctl.verbs.runs.run_state import BAD_ENDS
from clusterctl.verbs.runs.run_status import RunStatus

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """That a node made a run fail."""

    node: str
    run: str
    reason: str
    time: float
    """Seconds since 1970, by the master's clock."""


def blamed(view: RunStatus, master: str) -> tuple[Blame, ...]:
    """Return the nodes that a run blames, by its first cause and by what its master noted.

    `master`: its name by the record; what other nodes claim to have noted counts for nothing.
    """
    names = {answer.node.name for answer in view.nodes}
    noted = view.node_runs.get(master)
    found = {
        name: Blame(node=name, run=view.run, reason=one.why, time=one.time)
        for name, one in (noted.blamed.items() if noted else ())
    }
    cause = view.first_cause or (view.remembered.first_cause if view.remembered else None)
    if cause is not None and view.state in BAD_ENDS and (reason := _reason(cause)):
        time = cause.time or view.ended or (view.remembered and view.remembered.ended) or 0.0
        found[cause.node] = Blame(node=cause.node, run=view.run, reason=reason, time=time)
    return tuple(one for name, one in found.items() if name in names)


def _reason(cause: FirstCause | RecordedCause) -> str:
    """Return what a first cause says against its node; empty: nothing for certain."""
    if cause.kind == "node-lost":
        unsure = EACH_OTHER in cause.message or cause.message.startswith(SUPERVISOR_DIED)
        return "" if unsure else f"{LOST}: {cause.message}"
    elsewhere = {where.rpartition(":")[0] or where for where in cause.also} - {cause.node}
    # What a rank printed before it was killed from outside has nothing to do with that.
    if cause.signal in _FROM_OUTSIDE or elsewhere:
        return ""
    printed = cause_of(cause.lines)
    return "" if printed.echo else faulty(printed.kind, printed.line)
