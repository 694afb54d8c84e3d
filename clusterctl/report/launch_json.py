"""Prints a launch as JSON Lines on stdout; each object has a `kind`."""

import json
import sys
from typing import Any

from clusterctl.errors import ClusterError, Interrupted, LaunchRefused
from clusterctl.report.lines import JsonLines
from clusterctl.verbs.dump.explain import HangExplained
from clusterctl.verbs.events import CopyProgress, Event, Progress
from clusterctl.verbs.follow import LogLines, Tick
from clusterctl.verbs.launch.launch import Checked, Planned
from clusterctl.verbs.launch.run_result import RunResult
from clusterctl.verbs.launch.sync_code import Synced
from clusterctl.verbs.stop import Stopped, StopResult
from clusterctl.wire import SCHEMA, plain


class JsonDisplay:
    """Shows a launch to a program, as JSON Lines."""

    def ended(self, ended: RunResult) -> None:
        """Print how the run ended."""
        _print({"kind": ended.kind, **ended.document()})

    def refused(self, error: ClusterError) -> None:
        """Print why no run was started."""
        by = error.by if isinstance(error, LaunchRefused | Interrupted) else "usage"
        document = {"exit_code": error.exit_code, "ended_by": by, "message": str(error)}
        _print({"kind": "ended", "run": None, "state": None, **document})

    def stopped(self, result: StopResult) -> None:
        """Print the result of stopping the run."""
        _print({"kind": "stopped", **plain(result)})

    def quiet(self) -> None:
        """Do nothing: there is no progress line."""

    def show(self, event: Event) -> None:
        """Print one event."""
        match event:
            case LogLines(lines=lines):
                JsonLines(sys.stdout).show(lines)
            case Checked(verdict=verdict):
                _print({"kind": event.kind, **verdict.document()})
            case Synced(synced=synced):
                _print({"kind": event.kind, **synced.document()})
            case Planned(plan=plan):
                _print({"kind": event.kind, **plain(plan)})
            case HangExplained():
                _print({"kind": event.kind, **event.document()})
            case Stopped(result=result):
                self.stopped(result)
            case Tick() | Progress() | CopyProgress():
                return
            case _:
                _print({"kind": event.kind, **plain(event)})


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": SCHEMA, **document}) + "\n")
    sys.stdout.flush()
