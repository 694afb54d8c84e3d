"""Prints the list of runs."""

from __future__ import annotations

import time

from rich.console import OverflowMethod
from rich.table import Table

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.columns import GAP, columns
from clusterctl.report.console import Screen, safe_text
from clusterctl.report.status import age, command_line
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.list_runs import ListedRun, RunList
from clusterctl.verbs.runs.prune import Pruned

LONG = frozenset({"name", "command"})
"""Columns that a narrow terminal does not show."""
ENOUGH = {"nodes": 12, "name": 12, "command": 12}
NARROW = 80
REFUSED = frozenset({"busy", "start"})
"""`ended_by` of a launch that ended before the job could run."""


def show_runs(screen: Screen, listed: RunList) -> None:
    """Print the runs on stdout, the newest first, in as many columns as fit."""
    if not listed.runs:
        if not listed.errors:
            screen.say(Notice(text="no runs yet"))
        return
    rows = [_row(run) for run in listed.runs]
    left_out = LONG if screen.out.width < NARROW else frozenset()
    wanted = [title for title in rows[0] if title not in left_out]
    widths = columns(rows, wanted, screen.out.width, enough=ENOUGH)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for title, width in widths.items():
        overflow: OverflowMethod = "ellipsis" if title in LONG else "fold"
        table.add_column(title, max_width=width, no_wrap=title in LONG, overflow=overflow)
    for row in rows:
        table.add_row(*(safe_text(row[title]) for title in widths))
    screen.out.print(table)


def show_pruned(screen: Screen, pruned: Pruned) -> None:
    """Print the ids of deleted runs on stdout, and why others are kept on stderr."""
    for run in pruned.removed:
        screen.out.print(safe_text(run))
    for kept in pruned.kept:
        screen.say(Notice(text=f"{kept.run} is kept: {kept.why}"))
    if pruned.errors:
        screen.say(
            Notice(text="some nodes did not answer: no further run is deleted", level="warning")
        )
    else:
        screen.say(Notice(text=f"{counted(len(pruned.removed), 'run')} deleted"))


def _row(run: ListedRun) -> dict[str, str]:
    return {
        "run": run.run,
        "state": f"refused ({run.ended_by})" if run.ended_by in REFUSED else run.state,
        "began": f"{age(time.time() - run.began)} ago" if run.began else "",
        "nodes": fold_hosts(run.nodes),
        "name": run.name,
        "command": ("" if run.verified else "unverified: ") + command_line(run.command),
    }
