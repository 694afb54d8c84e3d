"""Prints a check as text: the nodes, the findings, and the command to type next."""

import re
import shlex
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import groupby

from rich.console import Console
from rich.text import Text

from clusterctl.checks.finding import ORDER, Finding, Status
from clusterctl.checks.registry import Check
from clusterctl.checks.software.job_check import JOB_CHECK
from clusterctl.checks.wording import counted
from clusterctl.facts.network.pairwise import PairRate
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import columns, print_table, safe_line, safe_text
from clusterctl.report.ladder import print_ladder
from clusterctl.verbs.preflight.check import CheckResult, LastGood, NodeRow

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
FEW = 16
"""So many nodes have a line each; of more, neighbors that are alike share one."""
_ON_NODE = re.compile(r" \(on (?:the node|(?P<node>[^\s,)]+))[,)]")
"""What a remedy says of its command: `(on the node)`, `(on gpu2)`."""
_INDENT = 5
_LABEL = 10


def print_check(
    console: Console, result: CheckResult, *, verbose: bool = False, quiet: bool = False
) -> None:
    """Print nodes, findings and the summary.

    If verbose, what was skipped and why, too; if quiet, only the problems and the verdict.
    """
    if not quiet:
        _print_found(console, result)
    for number, finding in enumerate(problems(result)):
        if number or not quiet:
            console.print()
        _print_finding(console, finding, result)
    if not quiet:
        _print_remarks(console, result, verbose=verbose)
    elif problems(result):
        console.print()
    console.print(safe_text(verdict(result), COLORS[worst(result)]))
    if nodes := _nodes_to_type_on(result):
        hint = f"hint: to run a command on a node: clusterctl exec --nodes {nodes} -- COMMAND"
        console.print(safe_text(hint))


def _print_found(console: Console, result: CheckResult) -> None:
    """Print the nodes, and what a deep check measured."""
    console.print(safe_text(headline(result)))
    if result.network.why:
        console.print(safe_text(f"network: {result.network.why}"))
    console.print()
    _print_nodes(console, result.nodes)
    print_ladder(console, result)
    if any(node.collective and node.collective.pairs for node in result.facts.values()):
        _print_rates(console, result)


def _print_remarks(console: Console, result: CheckResult, *, verbose: bool) -> None:
    """Print notes, changes and numbers: what follows the problems."""
    for note in notes(result):
        console.print()
        console.print(safe_text(f"note {note.check}  {who(note.nodes, result)}", COLORS["skip"]))
        _print_indented(console, "", note.message)
    if verbose:
        _print_skipped(console, result)
    if result.last_good and result.last_good.changes:
        console.print()
        _print_changes(console, result.last_good, result)
    console.print()
    _print_passed_code_check(console, result)
    console.print(safe_text(summary(result)))


def _print_passed_code_check(console: Console, result: CheckResult) -> None:
    """Print on which nodes the job's own check passed, if it ran."""
    for finding in result.findings:
        if finding.check == JOB_CHECK and finding.status == "pass":
            console.print(_code_check_line(finding, result))


def _nodes_to_type_on(result: CheckResult) -> str:
    """Return where the first command that must run on a node does so; empty: none must."""
    for finding in problems(result):
        where = _ON_NODE.search(finding.remedy)
        if where and not finding.check.startswith("ssh."):
            return shlex.quote(where["node"] or fold_hosts(finding.nodes))
    return ""


def _print_skipped(console: Console, result: CheckResult) -> None:
    """Print the checks that did not apply, by their reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for finding in result.findings:
        if finding.status == "skip" and not finding.found:
            reason = (finding.message, who(finding.nodes, result))
            reasons.setdefault(reason, []).append(finding.check)
    for (message, nodes), checks in reasons.items():
        console.print()
        console.print(safe_text(f"skip {nodes}: {message}", COLORS["skip"]))
        _print_indented(console, "", ", ".join(checks))


def _print_changes(console: Console, last: LastGood, result: CheckResult) -> None:
    console.print(safe_text(f"changed since the last good run, {when(last.began)} ({last.run}):"))
    for change in last.changes:
        _print_indented(console, "", f"{change.text()} on {who(change.nodes, result)}")


def print_code_check(console: Console, result: CheckResult) -> None:
    """Print the job's own check; the other checks were printed before the sync."""
    for finding in result.findings:
        if finding.check != JOB_CHECK:
            continue
        if finding in problems(result):
            _print_finding(console, finding, result)
        else:
            console.print(_code_check_line(finding, result))


def _code_check_line(finding: Finding, result: CheckResult) -> Text:
    return safe_text(f"{JOB_CHECK}: {PAST_TENSE[finding.status]} on {who(finding.nodes, result)}")


def print_explanation(console: Console, check: Check) -> None:
    """Print what a check is for, what its failure means and how it is repaired."""
    console.print(safe_text(f"{check.id}: {check.title}", "bold"))
    console.print()
    stops = "A failure stops a launch." if check.blocks else "A failure does not stop a launch."
    causes = ", ".join(check.explained_by)
    rows = (
        ("why", check.why),
        ("fix", check.fix),
        ("source", check.source),
        ("then", stops),
        ("skipped", f"for a node where one of these failed: {causes}" if causes else ""),
    )
    for name, text in rows:
        if text:
            _print_indented(console, f"{name + ':':<{_LABEL}}", text)


def print_choices(console: Console, result: CheckResult) -> None:
    """Print what each library will use; nodes with the same choices share a block."""
    by_node: dict[str, list[tuple[str, str, str]]] = {}
    for choice in result.choices:
        picks = ", ".join(choice.picks) or "-"
        by_node.setdefault(choice.node, []).append((choice.library, picks, choice.why))
    blocks: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for name, lines in by_node.items():
        blocks.setdefault(tuple(lines), []).append(name)
    for same, names in blocks.items():
        console.print(safe_text(who(names, result), "bold"))
        for library, picks, why in same:
            _print_indented(console, f"{library + ':':<12}", f"{picks}  ({why})")
        console.print()


def print_checks(console: Console, checks: Iterable[Check]) -> None:
    """Print every check in a line: its id, what passes, and whether a failure stops a launch."""
    rows = ((check.id, "yes" if check.blocks else "no", check.title) for check in checks)
    print_table(console, ("check", "stops", "passes if"), rows, cut=("check", "stops"))


def problems(result: CheckResult) -> tuple[Finding, ...]:
    """Return the findings that a user must read: neither passes nor skips."""
    return tuple(f for f in result.findings if f.status in {"fail", "unknown", "warn"})


def notes(result: CheckResult) -> tuple[Finding, ...]:
    """Return the passes that have something to tell, and what was measured but not judged."""
    return tuple(f for f in result.findings if f.status in {"pass", "skip"} and f.found)


def details(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Return the labeled lines below a finding's message."""
    parts = (("expected", finding.wanted), ("found", finding.found), ("hint", finding.remedy))
    return tuple((name, text) for name, text in parts if text)


def worst(result: CheckResult) -> Status:
    """Return the worst status."""
    return next((s for s in ORDER if any(f.status == s for f in result.findings)), "pass")


def verdict(result: CheckResult) -> str:
    """Return what follows from the findings: `not ready: 3 problems on 2 nodes`."""
    found = problems(result)
    serious = [f for f in found if f.status != "warn"]
    counted_as = [counted(len(serious), "problem")] if serious else []
    if len(found) > len(serious):
        counted_as.append(counted(len(found) - len(serious), "warning"))
    names = {name for f in found for name in f.nodes}
    place = (
        f" on {counted(len(names), 'node')}" if len(names) > 1 else f" on {min(names, default='')}"
    )
    listed = " and ".join(counted_as) + (place if names else "")
    if result.blocking:
        return f"not ready: {listed}"
    if result.partial:
        return f"these checks found {listed or 'no problem'}; the others were not asked for"
    return f"ready to launch, with {listed}" if found else "ready to launch"


def when(seconds: float) -> str:
    """Return a time on this machine's clock: `2026-11-22 14:02`."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


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
    by_check: dict[str, Status] = {}
    for finding in result.findings:
        known = by_check.get(finding.check)
        if known is None or ORDER.index(finding.status) < ORDER.index(known):
            by_check[finding.check] = finding.status
    statuses = list(by_check.values())
    counts = [
        f"{statuses.count(status)} {PAST_TENSE[status]}" for status in ORDER if status in statuses
    ]
    took = f" in {result.seconds:.1f} s" if result.seconds else ""
    return f"{counted(len(by_check), 'check')}{took}: {', '.join(counts)}"


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


def _print_nodes(console: Console, nodes: tuple[NodeRow, ...]) -> None:
    cells = [_cells(group) for group in _alike(nodes)]
    fits = columns(cells, WANTED, console.width, enough=ENOUGH)
    widths = {title: fits[title] for title in cells[0] if title in fits}
    rows = (
        [safe_text(cell[t], COLORS[cell[t].lower()] if t == "state" else "") for t in widths]
        for cell in cells
    )
    print_table(console, widths, rows, right=("rank",))


def _print_rates(console: Console, result: CheckResult) -> None:
    """Print what the pairs of nodes measured, a table of each; of many nodes, nothing."""
    measured = {
        node.node: {rate.peer: rate for rate in node.collective.pairs}
        for node in result.facts.values()
        if node.collective and node.collective.pairs
    }
    if len(measured) > FEW:
        return
    forms: tuple[tuple[str, Callable[[PairRate], str]], ...] = (
        ("Gb/s to", lambda rate: f"{rate.gbps:.2f}"),
        ("µs there and back", lambda rate: f"{rate.round_trip_s * 1e6:.0f}"),
    )
    for title, form in forms:
        rows = (
            (name, *(form(to[peer]) if peer in to else "-" for peer in measured))
            for name, to in measured.items()
        )
        console.print()
        print_table(console, (title, *measured), rows, right=measured, cut=(title,))


def _alike(rows: tuple[NodeRow, ...]) -> list[tuple[NodeRow, ...]]:
    """Return the rows in order; of many, neighbors that are alike form a group."""
    if len(rows) <= FEW:
        return [(row,) for row in rows]
    same = groupby(rows, key=lambda row: (row.state, row.interface, gpus(row)))
    return [tuple(group) for _, group in same]


def _cells(group: tuple[NodeRow, ...]) -> dict[str, str]:
    """Return the line of a group of nodes, in the order of the columns."""
    first, last = group[0], group[-1]
    many = len(group) > 1
    addresses = [row.address or "-" for row in (first, last)]
    return {
        "rank": f"{first.rank}-{last.rank}" if many else str(first.rank),
        "node": safe_line(fold_hosts(row.name for row in group)),
        "address": safe_line(" to ".join(addresses) if len(set(addresses)) > 1 else addresses[0]),
        "interface": safe_line(first.interface or "-"),
        "gpus": safe_line(gpus(first)),
        "state": first.state.upper() if first.state not in {"ok", "warn"} else first.state,
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
