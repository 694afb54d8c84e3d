"""Prints the status of a run: state, nodes, ranks, and why it ended."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clusterctl.checks.wording import counted
from clusterctl.logs import ranks
from clusterctl.logs.excerpt import excerpt
from clusterctl.logs.first_cause import FirstCause
from clusterctl.report.console import Screen, safe_text
from clusterctl.report.lines import utc
from clusterctl.verbs.runs.run_status import NodeAnswer, RunStatus

_STYLES = {
    "running": "green",
    "finished": "green",
    "queued": "cyan",
    "starting": "cyan",
    "stopping": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
    "lost": "bold red",
    "unreachable": "magenta",
}
_SHOWN_LINES = 12
END_THE_REST = "once the nodes answer, end what may be left: clusterctl stop {run}"
_MIB, _GIB = 1 << 20, 1 << 30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def show_status(screen: Screen, view: RunStatus) -> None:
    """Print a run's status on stdout."""
    _summary(screen.out, view)
    if view.nodes:
        screen.out.print(_nodes(view))
    if view.silent:
        screen.out.print(safe_text(f"{unanswered(view)}: what runs there is unknown", "magenta"))
        hints = [answer.error.hint for answer in view.silent if answer.error]
        if view.known and not view.live:
            hints.append(END_THE_REST.format(run=view.run))
        for hint in filter(None, dict.fromkeys(hints)):
            screen.out.print(safe_text(f"hint: {hint}"))
    if view.remembered and view.remembered.get("message"):
        screen.out.print(
            safe_text(f"ended by {view.ended_by}: {view.remembered['message']}", "red")
        )
    if view.first_cause:
        show_cause(screen.out, view.first_cause)


def _summary(console: Console, view: RunStatus) -> None:
    """Print what is known of the run as a whole."""
    console.print(safe_text(f"{view.title}  {view.state}", _STYLES.get(view.state, "")))
    if view.began:
        began = f"{utc(view.began)[:19]}Z, {age(time.time() - view.began)} ago"
        console.print(safe_text(f"  began    {began}"))
    if view.began and view.ended:
        took = duration(view.ended - view.began)
        ended = f"{utc(view.ended)[:19]}Z, {age(time.time() - view.ended)} ago, after {took}"
        console.print(safe_text(f"  ended    {ended}"))
    if view.command:
        console.print(safe_text(f"  command  {command_line(view.command)}"))
    if view.slurm:
        console.print(safe_text(f"  slurm    {_slurm(view.slurm)}"))
    if view.ray:
        console.print(safe_text(f"  ray      {_ray(view.ray)}"))
    last = view.last_line
    if last and last["line"]:
        where = last["node"] if last["rank"] is None else f"{last['node']}:{last['rank']}"
        text = f"  printed  {age(last['age_s'])} ago: [{where}] {last['line']}"
        console.print(safe_text(text), no_wrap=True, overflow="ellipsis", soft_wrap=False)
    elif view.live and not last and not view.silent:
        console.print(safe_text("  printed  nothing yet"))
    if view.checkpoint:
        step = "" if view.checkpoint.step is None else f" (step {view.checkpoint.step})"
        console.print(safe_text(f"  newest checkpoint  {view.checkpoint.path}{step}"))
    elif view.checkpoints:
        none = "none yet" if view.live else "none"
        text = f"{none}: this run has no complete one in {view.checkpoints}"
        console.print(safe_text(f"  newest checkpoint  {text}"))


def show_cause(console: Console, cause: FirstCause) -> None:
    """Print the first cause and its last lines."""
    where = cause.node if cause.rank is None else f"{cause.node}, rank {cause.rank}"
    console.print(safe_text(f"first cause: {where}: {cause.message}", "bold red"))
    if cause.also:
        console.print(safe_text(f"  at the same time, within clock error: {', '.join(cause.also)}"))
    for line in excerpt(cause.lines)[-_SHOWN_LINES:]:
        console.print(safe_text(f"  | {line}"), soft_wrap=True)
    for line in cause.remedy.splitlines():
        console.print(safe_text(f"hint: {line}"))


def unanswered(view: RunStatus) -> str:
    """Return how many nodes did not answer: `1 of 3 nodes did not answer`."""
    return f"{len(view.silent)} of {counted(len(view.nodes), 'node')} did not answer"


def _nodes(view: RunStatus) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    used = any(answer.node_run.get("usage") for answer in view.nodes)
    columns = ("processes", "memory", "GPUs") if used else ()
    for title in ("node", "state", "ranks", "joined", *columns, ""):
        table.add_column(title)
    for answer in view.nodes:
        table.add_row(
            safe_text(answer.node.name),
            safe_text(answer.state, _STYLES.get(answer.state, "")),
            safe_text(ranks.fold_ranks(rank["rank"] for rank in answer.ranks)),
            safe_text(_joined(answer)),
            *(_usage(answer) if used else ()),
            safe_text(_note(answer)),
        )
    return table


def _slurm(job: Mapping[str, str]) -> str:
    state = f"{job['state']} ({job['reason']})" if job["reason"] else job["state"]
    return " ".join(filter(None, [f"job {job['job']}", state, job["nodes"]]))


def _ray(cluster: Mapping[str, Any]) -> str:
    nodes: Sequence[Mapping[str, float]] = cluster["nodes"]
    total = [
        counted(round(sum(node[kind] for node in nodes)), title)
        for kind, title in (("cpus", "CPU"), ("gpus", "GPU"))
    ]
    found = ", ".join([counted(len(nodes), "node"), *total])
    return f"{cluster['version']} at {cluster['address']}: {found}; its workers do not report"


def _joined(answer: NodeAnswer) -> str:
    joined = sum(1 for rank in answer.ranks if rank.get("joined"))
    return f"{joined}/{len(answer.ranks)}" if answer.ranks else ""


def _usage(answer: NodeAnswer) -> tuple[Text, Text, Text]:
    """Return processes, memory and GPUs of a node; empty where they are unknown."""
    used: Mapping[str, Any] = answer.node_run.get("usage") or {}
    if not used:
        return (safe_text(""),) * 3
    size = used["memory_bytes"]
    memory = f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / _MIB:.0f} MiB"
    return safe_text(str(used["processes"])), safe_text(memory), safe_text(_gpus(used.get("gpus")))


def _gpus(gpus: Sequence[Mapping[str, Any]] | None) -> str:
    """Return what all GPUs of a node do: `8 at 91-99 %, 71 of 80 GiB`."""
    if not gpus:
        return ""
    busy = [gpu["percent"] for gpu in gpus if gpu.get("percent") is not None]
    spread = [str(each) for each in sorted({min(busy), max(busy)})] if busy else ["?"]
    used = [gpu.get("memory_used_bytes") or 0 for gpu in gpus]
    total = [gpu.get("memory_total_bytes") or 0 for gpu in gpus]
    memory = f"{max(used) / _GIB:.0f} of {max(total) / _GIB:.0f} GiB"
    return f"{len(gpus)} at {'-'.join(spread)} %, {memory}"


def _note(answer: NodeAnswer) -> str:
    if answer.error:
        return str(answer.error)
    if answer.end:
        return str(answer.end.get("reason") or "")
    if answer.state != "lost":
        return ""
    return "the machine was rebooted" if answer.rebooted else "its supervisor died"


def command_line(command: Sequence[str]) -> str:
    """Return a command without its Python interpreter."""
    first, *rest = command or ("",)
    python = rest and re.fullmatch(r"python[\d.]*", first.rpartition("/")[2])
    return shlex.join(rest if python else command)


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: `1 h 55 min`, `40 s`."""
    left = round(max(seconds, 0))
    parts = []
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def age(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
