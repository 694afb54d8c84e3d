"""How a followed run ended: its state, who ended it, and what launch exits with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import LaunchRefused
from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.first_cause import FirstCause
from clusterctl.verbs.answers import Trouble
from clusterctl.verbs.events import Event
from clusterctl.verbs.gathering import StartTimeout
from clusterctl.verbs.runlog import RunLog
from clusterctl.verbs.runview import RunView
from clusterctl.verbs.status import view_of
from clusterctl.wire import SCHEMA, plain

EXIT_ENDED_BY_US = LaunchRefused.exit_code
EXIT_FAILED = 1
LOST_REMEDY = "clusterctl check says which node does not answer; --exclude HOST goes on without it"
LATE_REMEDY = "clusterctl check tries the port from every node; more time: --start-timeout S"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Event):
    """The run is over, as far as its nodes could say."""

    view: RunView
    exit_code: int
    ended_by: str
    """`job`, `stop`, `lost`, `start-timeout`, `supervisor`; `unknown`: a node did not answer."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": SCHEMA,
            "run": self.view.run,
            "state": self.view.state,
            "exit_code": self.exit_code,
            "ended_by": self.ended_by,
            "first_cause": plain(self.view.first_cause),
        }


def outcome(log: RunLog, troubles: Mapping[str, Trouble], late: StartTimeout | None) -> Ended:
    """Judge what was followed to its end.

    Args:
        log: all that was read of the run.
        troubles: nodes that could not be followed to the end.
        late: that it was ended because ranks did not join.
    """
    failures = {name: trouble.message for name, trouble in troubles.items()}
    view = view_of(log.run, log.cluster, log.parts, failures)
    if late is not None:
        view = replace(view, first_cause=_who_was_late(log.cluster, late))
        return Ended(view=view, exit_code=EXIT_ENDED_BY_US, ended_by="start-timeout")
    if view.state != "finished":
        view = replace(view, first_cause=log.first_cause() or _what_ends_say(view))
    code, by = _exit(view)
    return Ended(view=view, exit_code=code, ended_by=by)


def _exit(view: RunView) -> tuple[int, str]:
    by = view.ended_by or "unknown"
    if view.state == "finished":
        return 0, "job"
    cause = view.first_cause
    if cause is not None and cause.kind == "supervisor":  # ranks elsewhere may have seen it first
        return EXIT_ENDED_BY_US, "supervisor"
    if by == "job" and cause is not None and cause.kind != "node-lost":
        return cause.exit_status, by
    if by == "job" and not view.silent:
        return EXIT_FAILED, by
    if cause is not None and cause.kind == "node-lost":
        return EXIT_ENDED_BY_US, "lost"
    return EXIT_ENDED_BY_US, by if by != "job" else "unknown"


def _who_was_late(cluster: Cluster, late: StartTimeout) -> FirstCause:
    # Missing is a node or a rank of one, and a node may be called by its IPv6 address.
    node, rank = late.missing[0], ""
    if all(each.name != node for each in cluster.nodes):
        node, _, rank = node.rpartition(":")
    return FirstCause(
        node=node,
        rank=int(rank) if rank else None,
        time=time.time(),
        kind="start-timeout",
        exit_code=None,
        message=f"not joined within {late.seconds:g} s: {', '.join(late.missing)}",
        remedy=LATE_REMEDY,
    )


def _what_ends_say(view: RunView) -> FirstCause | None:
    """Make a cause of what the nodes' records say, where no event does."""
    for answer in view.nodes:
        by = answer.end.get("by")
        if by in {"start-timeout", "lost"}:
            late = by == "start-timeout"
            return FirstCause(
                node=answer.node.name,
                rank=None,
                time=float(answer.end.get("time") or 0.0),
                kind="start-timeout" if late else "node-lost",
                exit_code=None,
                message=str(answer.end.get("reason") or by),
                remedy=LATE_REMEDY if late else LOST_REMEDY,
            )
    return None
