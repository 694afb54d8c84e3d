"""Prints the list of runs, one run in full, what pruning deletes, and who joined a run."""

import datetime as dt
import re
import time
from collections.abc import Mapping

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.inventory.secret_values import is_secret
from clusterctl.report.console import Screen, columns, print_table, safe_line, safe_text
from clusterctl.report.lines import day_and_time, duration
from clusterctl.report.status import command_line, show_status
from clusterctl.verbs.events import Notice
from clusterctl.verbs.join.result import JoinResult
from clusterctl.verbs.runs.list_runs import ListedRun, RunList
from clusterctl.verbs.runs.one_run import OneRun
from clusterctl.verbs.runs.prune import NAMED, RECENT, Prunable, Pruned
from clusterctl.verbs.runs.run_state import LIVE

ENOUGH = {"nodes": 12, "name": 10, "why": 18, "command": 34}
"""Columns that may be cut, and the width that each must have."""
WIDE = 140
"""The width from which on a reason is cut at its `MOST` only, and the end has a column."""
MOST = {"why": 44, "nodes": 30}
"""Columns that leave room to others, and the width that each has at most."""
REFUSED = frozenset({"busy", "start"})
"""`ended_by` of a launch that ended before the job could run."""
_RANK_EXIT = re.compile(r", rank (\d+): exited with \d+: ")
"""What the reasons of most failures have in common, before what tells one from another."""
_COMMIT = 7
"""Digits of a commit, as git shows them."""


def show_runs(screen: Screen, listed: RunList, *, refused: bool = True) -> None:
    """Print the runs on stdout, the newest first, in as many columns as fit.

    Unless `refused`, launches that were refused are left out if there are others.
    """
    if not listed.runs:
        if not listed.errors:
            screen.say(Notice(text="no runs yet"))
        return
    ran = tuple(run for run in listed.runs if refused or run.ended_by not in REFUSED)
    _print_table(screen, ran or listed.runs)
    if ran and (hidden := len(listed.runs) - len(ran)):
        text = f"{counted(hidden, 'refused run')} left out"
        screen.say(Notice(text=text, hint="clusterctl runs --failed"))


def _print_table(screen: Screen, runs: tuple[ListedRun, ...]) -> None:
    parents = {one.run: one.short for one in runs}
    rows = [_row(run, parents) for run in runs]
    wide = screen.out.width >= WIDE
    enough = {**ENOUGH, "why": MOST["why"]} if wide else ENOUGH
    wanted = [title for title in rows[0] if wide or title != "ended"]
    widths = columns(rows, wanted, screen.out.width, enough=enough)
    for row in rows:
        for title in ("command", "name"):
            row[title] = shorten(row[title], widths.get(title, 0))
    cells = ([row[title] for title in widths] for row in rows)
    print_table(screen.out, widths, cells, cut=ENOUGH)


def show_run(screen: Screen, run: OneRun) -> None:
    """Print all that is known of one run on stdout."""
    show_status(screen, run.status)
    line, record = run.line, run.record
    facts: dict[str, str] = {
        "short id": line.short,
        "here": _local(line),
        "took": _took(line),
        "step": _step(line),
        "resumed from": " ".join(filter(None, (line.parent, line.checkpoint))),
        "why": "" if run.status.first_cause else line.reason,
        "chain": ", ".join(run.chain) if len(run.chain) > 1 else "",
        "code": _code(line),
    }
    if record is not None:
        facts |= {
            "source": record.source,
            "launcher": record.cluster.job.launcher,
            "options": _options(record.options),
            "left out": "; ".join(f"{one.node}: {one.reason}" for one in record.left_out),
            "warnings": "; ".join(
                str(one.get("message"))
                for one in record.findings
                if one.get("status") in ("warn", "fail")
            ),
            "record": str(run.folder),
        }
    width = max(map(len, facts))
    for title, text in facts.items():
        if text:
            screen.out.print(safe_text(f"  {title:{width}}  {text}"))
    if len(run.chain) > 1:
        text = f"{counted(len(run.chain), 'run')} in its chain"
        screen.say(Notice(text=text, hint=f"clusterctl logs {line.run} --chain"))


def show_prunable(screen: Screen, plan: Prunable) -> str:
    """Print which runs would be deleted on stderr; return how many, in words."""
    if plan.runs:
        _print_table(Screen(screen.err, screen.err), plan.runs)
    return counted(len(plan.runs), "run")


def show_pruned(screen: Screen, pruned: Pruned, *, keep: int) -> None:
    """Print the ids of deleted runs on stdout, and why others are kept on stderr."""
    for run in pruned.removed:
        screen.out.print(safe_text(run))
    by_choice = [kept for kept in pruned.kept if kept.why in {NAMED, RECENT}]
    for kept in pruned.kept:
        if kept not in by_choice:
            screen.say(Notice(text=f"{kept.run} is kept: {kept.why}"))
    if by_choice:
        text = f"{counted(len(by_choice), 'run')} with a name or of the last day kept"
        screen.say(Notice(text=text, hint=f"clusterctl runs --prune {keep} --all"))
    if pruned.errors:
        screen.say(Notice(text="some nodes did not answer: nothing is deleted", level="warning"))
    else:
        screen.say(Notice(text=f"{counted(len(pruned.removed), 'run')} deleted"))


def shorten(text: str, width: int) -> str:
    """Return text cut in its middle: what differs between runs is often at its end."""
    if len(text) <= width or width < 1:
        return text
    begin = width // 2
    end = width - begin - 1
    return f"{text[:begin]}…{text[len(text) - end :]}"


def _row(run: ListedRun, shorts: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a run, the most important column first."""
    cells = {
        "run": run.short or run.run,
        "state": f"refused ({run.ended_by})" if run.ended_by in REFUSED else run.state,
        "began": day_and_time(run.began),
        "took": _took(run),
        "step": _step(run),
        "attempt": f"{run.attempt} of {run.attempts}" if run.attempt > 1 else "",
        "name": run.name,
        "why": _RANK_EXIT.sub(r":\1: ", run.reason),
        "command": ("" if run.verified else "unverified: ") + command_line(run.command),
        "from": shorts.get(run.parent, run.parent.rpartition("-")[2]),
        "nodes": fold_hosts(run.nodes),
        "commit": f"{run.commit[:_COMMIT]}{'*' if run.commit and run.dirty else ''}",
        "ended": day_and_time(run.ended),
    }
    cells = {title: safe_line(text) for title, text in cells.items()}
    return {title: _cut(text, MOST.get(title)) for title, text in cells.items()}


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _step(run: ListedRun) -> str:
    if run.step is None:
        return ""
    return f"{run.step}/{run.total}" if run.total else str(run.step)


def _took(run: ListedRun) -> str:
    """Return how long it took, or has taken so far: `1h55m`."""
    if not run.began:
        return ""
    until = time.time() if run.state in LIVE else run.ended
    return duration(until - run.began).replace(" min", "m").replace(" ", "") if until else ""


def _local(run: ListedRun) -> str:
    """Return when it ran by this machine's clock."""
    times = [dt.datetime.fromtimestamp(one).astimezone() for one in (run.began, run.ended) if one]
    return " to ".join(f"{one:%a %Y-%m-%d %H:%M:%S %Z}" for one in times)


def _code(run: ListedRun) -> str:
    changes = " with changes that are not in it" if run.dirty else ""
    return f"commit {run.commit}{changes}" if run.commit else ""


def _options(options: Mapping[str, object]) -> str:
    """Return the options of the launch that were given."""
    given = {name: one for name, one in options.items() if one not in (None, "", [], {}, False)}
    texts = {name: _option(one) for name, one in given.items() if name != "command"}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _option(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return " ".join(_pair(*one) if isinstance(one, list) else str(one) for one in value)


def _pair(name: str, value: str) -> str:
    """Return a variable as it was typed, without what looks like a secret."""
    return f"{name}={'(hidden)' if is_secret(name, value) else value}"


def show_join(screen: Screen, result: JoinResult) -> None:
    """Print those that joined on stdout; errors and hints on stderr."""
    for standby, what in (
        (False, "joined; the launcher starts the ranks again, with the command of the launch"),
        (True, "joined and stands by: the next restart gives it a place, if a node is lost"),
    ):
        found = [n.node for n in result.nodes if n.state == "joined" and n.standby == standby]
        if found:
            screen.out.print(safe_text(f"{result.run}: {', '.join(found)} {what}"))
    for node in result.nodes:
        if node.state == "joined":
            continue
        for line in node.message.splitlines() or [node.state]:
            screen.say(Notice(text=line, node=node.node, level="error"))
        if node.hint:
            # Never wrapped: you may copy it.
            screen.err.print(safe_text(f"hint: {node.hint}"), soft_wrap=True)
