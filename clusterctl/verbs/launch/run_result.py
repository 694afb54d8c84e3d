"""How a followed run ended: its state, who ended it, and what launch exits with."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterctl.errors import LaunchRefused, NodeError
from clusterctl.model.from_json import from_json
from clusterctl.model.run_record import Correction, PastEnd, RecordedCause, RunEnd
from clusterctl.values import dataclass
from clusterctl.verbs.events import Event
from clusterctl.verbs.launch.join_monitor import StartTimeout
from clusterctl.verbs.runs.join_failure import join_failure, why_ended, with_late_nodes
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.verbs.runs.run_state import BAD_ENDS, staying
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from clusterctl.wire import SCHEMA, plain

EXIT_FAILED = 1
EXIT_TIME_IS_OVER = 124
"""As `timeout` exits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Event):
    """The run is over, as far as its nodes could say."""

    kind = "ended"

    view: RunStatus
    exit_code: int
    ended_by: str
    """`job`, `stop`, `max-time`, `lost`, `start-timeout`, `world`, `hang`, `before`, `supervisor`.

    `unknown`: a node did not answer.
    """

    def __str__(self) -> str:
        """Return how it ended, in a line."""
        return f"{self.view}; exit code {self.exit_code}"

    @property
    def known(self) -> bool:
        """A node reported how it ended."""
        return self.ended_by != "unknown" or self.view.known

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": SCHEMA,
            "run": self.view.run,
            "state": self.view.state,
            "exit_code": self.exit_code,
            "ended_by": self.ended_by,
            "first_cause": plain(self.view.first_cause),
            "false_alarms": self.view.false_alarms,
            "quarantined": plain(self.view.quarantined),
        }


def run_result(
    log: RunLog, errors: Mapping[str, NodeError], late: StartTimeout | None
) -> RunResult:
    """Judge what was followed to its end."""
    view = view_of(log.run, log.cluster, log.node_runs, errors)
    if late is not None:
        cause = join_failure(view, late.missing, late.seconds)
        view = replace(view, first_cause=with_late_nodes(cause, log.late))
        return RunResult(view=view, exit_code=LaunchRefused.exit_code, ended_by="start-timeout")
    if view.state in BAD_ENDS:
        view = replace(view, first_cause=why_ended(log, view))
    code, by = _exit(view)
    return RunResult(view=view, exit_code=code, ended_by=by)


def remember_seen(records: Records, record: RunRecord, view: RunStatus) -> None:
    """Keep how a run ended that was not followed to its end: its nodes may be gone later."""
    unknown = view.live or view.silent or not view.known or view.state == "lost"
    told = view.remembered is not None and view.remembered.state != "unreachable"
    if not (told or unknown):
        code, by = _exit(view)
        seen = RunResult(view=view, exit_code=code, ended_by=by)
        records.write_end(record, {**seen.document(), "ended": view.ended})


def corrected_end(view: RunStatus) -> RunEnd | None:
    """The remembered end as all nodes tell it now; None: nothing new is known of it.

    That a node was lost may only show when it answers again, by then rebooted; or that one
    which was cut off finished.
    """
    end, cause = view.remembered, view.first_cause
    if end is None or view.silent:
        return None
    old = end.first_cause
    finished = end.state == "lost" and all(one.state == "finished" for one in staying(view.nodes))
    lost = cause is not None and cause.kind == "node-lost"
    if not finished and (not lost or (old is not None and old.kind == "node-lost")):
        return None
    was = PastEnd(state=end.state, ended_by=end.ended_by, first_cause=old, exit_code=end.exit_code)
    why = f"{cause.node}: {cause.message}" if cause else "every node finished"
    return replace(
        end,
        state=view.state,
        ended_by=view.ended_by,
        first_cause=from_json(RecordedCause, plain(cause), "first_cause") if cause else None,
        exit_code=0 if finished else LaunchRefused.exit_code,
        corrected=Correction(time=time.time(), why=why, was=was),
    )


def _exit(view: RunStatus) -> tuple[int, str]:
    by = view.ended_by or "unknown"
    if view.state == "finished":
        return 0, by
    gave_up = [one.end.run_exit_code for one in view.nodes if one.end]
    if any(gave_up):
        return max(filter(None, gave_up)), by
    if by == "max-time":
        return EXIT_TIME_IS_OVER, by
    if by != "job":
        return LaunchRefused.exit_code, by
    if view.first_cause is not None:
        return view.first_cause.exit_status, by
    return (LaunchRefused.exit_code, "unknown") if view.silent else (EXIT_FAILED, by)
