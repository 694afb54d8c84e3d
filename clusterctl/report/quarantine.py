"""Prints the nodes in quarantine."""

import shlex

from rich.console import Console

from clusterctl.checks.wording import ago, left
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.quarantine import Quarantined
from clusterctl.report.console import Screen, columns, print_table, safe_line, safe_text
from clusterctl.verbs.events import Notice
from clusterctl.verbs.quarantine.quarantine import QuarantineList, when
from clusterctl.verbs.runs.run_status import RunStatus

_ENOUGH = {"reason": 30}


def show_quarantine(screen: Screen, found: QuarantineList) -> None:
    """Print a line a node on stdout."""
    if not found.nodes:
        screen.say(Notice(text="no node is in quarantine"))
        return
    rows = [_row(one) for one in found]
    widths = columns(rows, list(rows[0]), screen.out.width, enough=_ENOUGH)
    print_table(screen.out, widths, ([row[title] for title in widths] for row in rows))


def _row(one: Quarantined) -> dict[str, str]:
    notes = ["replaced: it has another host key"] if one.replaced else []
    notes += ["not in the inventory"] if one.absent else []
    row = {
        "node": one.node,
        "since": ago(one.age_s),
        "left": left(one.left_s),
        "reason": one.reason,
        "note": ", ".join(notes),
        "run": one.run,
    }
    return {title: safe_line(text) for title, text in row.items()}


def show_quarantined(console: Console, view: RunStatus) -> None:
    """Print which nodes of a run are in quarantine, and how to take them out."""
    for one in view.quarantined:
        text = f"{one.node}: in quarantine: {one.reason} ({when(one)})"
        console.print(safe_text(text, "yellow"))
    if view.quarantined:
        names = shlex.quote(fold_hosts(one.node for one in view.quarantined))
        text = f"hint: if repaired: clusterctl quarantine remove {names}"
        console.print(safe_text(text), soft_wrap=True)
