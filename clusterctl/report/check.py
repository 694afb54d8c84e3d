"""Prints a check for a person: the nodes, the findings, and the command to type next."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from clusterctl.checks.finding import ORDER, Finding, Status
from clusterctl.checks.registry import Check
from clusterctl.checks.software import JOB_CHECK
from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.columns import GAP, columns
from clusterctl.report.console import safe_line, safe_text
from clusterctl.verbs.preflight.check import CheckResult, NodeRow

COLORS = {
    "ok": "green",
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "unknown": "magenta",
    "unreachable": "bold red",
    "skip": "dim",
}
PAST_TENSE: dict[Status, str] = {
    "fail": "failed",
    "unknown": "unknown",
    "warn": "warned",
    "skip": "skipped",
    "pass": "passed",
}
WANTED = ("node", "state", "rank", "address", "gpus", "interface")
"""The columns of the nodes, the most important first; a narrow terminal shows only some."""
ENOUGH = {"node": 12, "address": 15, "gpus": 12}
_INDENT = 5
_LABEL = 10


def print_check(console: Console, result: CheckResult) -> None:
    """Print nodes, findings and the summary."""
    console.print(safe_text(headline(result)))
    if result.network.why:
        console.print(safe_text(f"network: {result.network.why}"))
    console.print()
    console.print(_nodes(result.nodes, console.width))
    for finding in problems(result):
        console.print()
        _print_finding(console, finding, result)
    for note in notes(result):
        console.print()
        console.print(safe_text(f"note {note.check}  {who(note.nodes, result)}", COLORS["skip"]))
        _print_indented(console, "", note.message)
    console.print()
    console.print(safe_text(summary(result), COLORS[verdict(result)]))


def print_code_check(console: Console, result: CheckResult) -> None:
    """Print the job's own check; the other checks were printed before the sync."""
    for finding in result.findings:
        if finding.check != JOB_CHECK:
            continue
        if finding in problems(result):
            _print_finding(console, finding, result)
        else:
            nodes = who(finding.nodes, result)
            console.print(safe_text(f"{JOB_CHECK}: {PAST_TENSE[finding.status]} on {nodes}"))


def print_explanation(console: Console, check: Check) -> None:
    """Print what a check is for and what its failure means."""
    console.print(safe_text(f"{check.id}: {check.title}"))
    console.print(safe_text(check.why))
    consequence = "stops a launch" if check.blocks else "does not stop a launch"
    console.print(safe_text(f"A failure {consequence}."))
    if check.explained_by:
        causes = ", ".join(check.explained_by)
        console.print(safe_text(f"Left out for a node where one of these failed: {causes}."))


def problems(result: CheckResult) -> tuple[Finding, ...]:
    """Return the findings that a person must read: neither passes nor skips."""
    return tuple(f for f in result.findings if f.status in {"fail", "unknown", "warn"})


def notes(result: CheckResult) -> tuple[Finding, ...]:
    """Return the passes that have something to tell."""
    return tuple(f for f in result.findings if f.status == "pass" and f.found)


def details(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Return the labeled lines below a finding's message."""
    parts = (("expected", finding.wanted), ("found", finding.found), ("hint", finding.remedy))
    return tuple((name, text) for name, text in parts if text)


def verdict(result: CheckResult) -> Status:
    """Return the worst status."""
    return next((s for s in ORDER if any(f.status == s for f in result.findings)), "pass")


def headline(result: CheckResult) -> str:
    """Return the cluster and its network in one line."""
    network = result.network
    line = f"{result.cluster}: {counted(len(result.nodes), 'node')}"
    if network.subnet:
        line += f" on {network.subnet}"
    if network.master_address:
        line += f", master {network.master_address} port {network.master_port}"
    return line


def summary(result: CheckResult) -> str:
    """Return the number of checks of each status, and the time."""
    worst: dict[str, Status] = {}
    for finding in result.findings:
        known = worst.get(finding.check)
        if known is None or ORDER.index(finding.status) < ORDER.index(known):
            worst[finding.check] = finding.status
    statuses = list(worst.values())
    counts = [
        f"{statuses.count(status)} {PAST_TENSE[status]}" for status in ORDER if status in statuses
    ]
    took = f" in {result.seconds:.1f} s" if result.seconds else ""
    return f"{counted(len(worst), 'check')}{took}: {', '.join(counts)}"


def place(finding: Finding, result: CheckResult) -> str:
    """Return where a finding is: `GPU 0-7 on 6 of 8 nodes: gpu[1-6]`."""
    nodes = who(finding.nodes, result)
    numbers = fold_hosts(map(str, finding.gpus)).strip("[]")
    return f"GPU {numbers} on {nodes}" if numbers else nodes


def who(nodes: Iterable[str], result: CheckResult) -> str:
    """Return nodes, folded: `6 of 8 nodes: gpu[1-6]`."""
    named = tuple(nodes)
    if not named:
        return ""
    total = len(result.nodes)
    if len(named) == total and total > 1:
        return f"all {total} nodes"
    folded = fold_hosts(named)
    return folded if len(named) == 1 else f"{len(named)} of {total} nodes: {folded}"


def gpus(row: NodeRow) -> str:
    """Return a node's accelerators: `8 x H100 80GB HBM3`, `none`, or `?`."""
    if row.gpus is None:
        return "?"
    if not row.gpus:
        return "none"
    name = row.gpu_name.removeprefix("NVIDIA ").removeprefix("AMD ")
    return f"{row.gpus} x {name}" if name else str(row.gpus)


def _nodes(rows: tuple[NodeRow, ...], width: int) -> Table:
    cells = [_cells(row) for row in rows]
    shown = columns(cells, WANTED, width, enough=ENOUGH)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for title in cells[0]:
        if title in shown:
            justify: JustifyMethod = "right" if title == "rank" else "left"
            table.add_column(title, justify=justify, overflow="fold", max_width=shown[title])
    for row, cell in zip(rows, cells, strict=True):
        styles = {"state": COLORS[row.state]}
        table.add_row(*(safe_text(cell[t], styles.get(t, "")) for t in cell if t in shown))
    return table


def _cells(row: NodeRow) -> dict[str, str]:
    """Return the row of a node, in the order of the columns."""
    return {
        "rank": str(row.rank),
        "node": safe_line(row.name),
        "address": safe_line(row.address or "-"),
        "interface": safe_line(row.interface or "-"),
        "gpus": safe_line(gpus(row)),
        "state": row.state.upper() if row.state not in {"ok", "warn"} else row.state,
    }


def _print_finding(console: Console, finding: Finding, result: CheckResult) -> None:
    """Print one finding: status, check and nodes; then message, expected, found and hint."""
    title = Text(f"{finding.status.upper():<{_INDENT}}", style=COLORS[finding.status])
    if len(finding.status) >= _INDENT:
        title.append(" ")
    title.append(finding.check, style="bold")
    title.append("  " + safe_line(place(finding, result)))
    console.print(title)
    _print_indented(console, "", finding.message)
    for name, text in details(finding):
        _print_indented(console, f"{name + ':':<{_LABEL}}", text)


def _print_indented(console: Console, label: str, text: str) -> None:
    """Print indented text; further lines are aligned with the first."""
    width = max(console.width - _INDENT - len(label), 1)
    wrapped = [line for part in text.split("\n") for line in safe_text(part).wrap(console, width)]
    for number, line in enumerate(wrapped):
        line.rstrip()
        console.print(Text(" " * _INDENT + (label if not number else " " * len(label))) + line)
