"""Prints the status of a run: state, nodes, ranks, and why it ended."""

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts, name_hosts
from clusterctl.logs import ranks
from clusterctl.logs.excerpt import excerpt
from clusterctl.logs.first_cause import FirstCause
from clusterctl.logs.progress_line import JobProgress
from clusterctl.model.node_run import Fell, LastLine, RayCluster, Straggler
from clusterctl.model.run_record import Correction
from clusterctl.model.usage import GpuUsage, Usage
from clusterctl.report.console import Screen, print_table, safe_text
from clusterctl.report.lines import age, duration, utc
from clusterctl.report.quarantine import show_quarantined
from clusterctl.verbs.runs.run_state import BAD_ENDS, NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus

STYLES = {
    "running": "green",
    "hung": "bold red",
    "finished": "green",
    "queued": "cyan",
    "starting": "cyan",
    "standby": "cyan",
    "left out": "magenta",
    "stopping": "yellow",
    "waiting": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
    "lost": "bold red",
    "unreachable": "magenta",
}
_SHOWN_LINES = 12
_SILENT_SECONDS, _SILENT_TIMES = 10.0, 10.0
"""A log that grew no longer than that, and than so many times its usual gap, is silent."""
_USAGE = ("CPU", "memory", "GPUs", "slow")
END_THE_REST = "once the nodes answer, end what may be left: clusterctl stop {run}"
_MIB, _GIB = 1 << 20, 1 << 30


def show_status(screen: Screen, view: RunStatus, *, again: bool = False) -> None:
    """Print a run's status on stdout.

    Args:
        again: of a row of them: a terminal is cleared before, elsewhere an empty line comes after.
    """
    if again and screen.out.is_terminal:
        screen.out.clear()
    _show_all(screen, view)
    if again and not screen.out.is_terminal:
        screen.out.print()
    screen.out.file.flush()


def _show_all(screen: Screen, view: RunStatus) -> None:
    _summary(screen.out, view)
    if view.nodes:
        _print_nodes(screen.out, view)
    if view.silent:
        over = view.state == "finished"  # on all nodes, as they told before
        unknown = "" if over else ": what runs there is unknown"
        screen.out.print(safe_text(f"{unanswered(view)}{unknown}", "magenta"))
        hints = [answer.error.hint for answer in view.silent if answer.error]
        if view.known and not (view.live or over):
            hints.append(END_THE_REST.format(run=view.run))
        for hint in filter(None, dict.fromkeys(hints)):
            screen.out.print(safe_text(f"hint: {hint}"))
    if cut_off := view.never_begun(time.time()):
        text = (
            f"{fold_hosts(cut_off)}: not started yet: its env_init runs, or the launch was killed"
        )
        screen.out.print(safe_text(text, "yellow"))
        screen.out.print(safe_text(f"hint: if no launch is under way: clusterctl stop {view.run}"))
    if view.remembered and view.remembered.message:
        screen.out.print(safe_text(f"ended by {view.ended_by}: {view.remembered.message}", "red"))
    if view.remembered and view.remembered.corrected:
        screen.out.print(safe_text(_correction(view.remembered.corrected)))
    if view.first_cause:
        show_cause(screen.out, view.first_cause)
    show_no_restart(screen.out, view)
    show_quarantined(screen.out, view)
    if view.notify_problem:
        screen.out.print(safe_text(f"not sent: {view.notify_problem}", "yellow"))
    show_time_over(screen.out, view)


def _correction(event: Correction) -> str:
    """Return what had been recorded before later evidence corrected it."""
    cause = event.was.first_cause
    where = f": {cause.node}: {cause.message}" if cause else ""
    recorded = f"{event.was.state}, ended by {event.was.ended_by}{where}"
    return f"corrected: it was recorded as {recorded}"


def _summary(console: Console, view: RunStatus) -> None:
    """Print what is known of the run as a whole."""
    console.print(safe_text(f"{view.title}  {view.state}", STYLES.get(view.state, "")))
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
    _output(console, view)
    _checkpoint(console, view)


def _checkpoint(console: Console, view: RunStatus) -> None:
    """Print the newest checkpoint, and whose it is."""
    if view.checkpoint:
        step = "" if view.checkpoint.step is None else f" (step {view.checkpoint.step})"
        writer = view.checkpoint.run
        whose = f" of {writer}, which this run resumes" if writer not in {"", view.run} else ""
        console.print(safe_text(f"  newest checkpoint  {view.checkpoint.path}{step}{whose}"))
        if node := view.checkpoint.missing_on:
            text = f"    {node} lacks it or has another, so no restart or resume takes it; `resume"
            console.print(safe_text(f"{text} --checkpoint latest` names what to type"))
    elif view.checkpoints:
        none = "none yet" if view.live else "none"
        text = f"{none}: this run has no complete one in {view.checkpoints}"
        console.print(safe_text(f"  newest checkpoint  {text}"))


def _output(console: Console, view: RunStatus) -> None:
    """Print how far it is, and what it printed last."""
    _hang(console, view)
    if view.false_alarms:
        console.print(
            safe_text(f"  resumed  {counted(view.false_alarms, 'time')} after it was hung")
        )
    for node, one in view.stragglers:
        console.print(safe_text(f"  slow     {slow_rank(node, one)}", "yellow"))
    if view.alone:
        whose = "their" if len(view.alone) > 1 else "its"
        text = f"{fold_hosts(view.alone)}: no connection of {whose} ranks to another node was seen"
        console.print(safe_text(f"  alone    {text}", "yellow"))
    if view.fell:
        console.print(safe_text(f"  fell     {fall(view.fell)}", "yellow"))
    if pace := pace_words(view.pace):
        console.print(safe_text(f"  progress {pace}"))
    if view.restarts:
        console.print(safe_text(f"  restarts {view.restarts}", "yellow"))
    _attempt(console, view)
    last = view.last_line
    if last and last.line:
        where = last.node if last.rank is None else f"{last.node}:{last.rank}"
        usually, silent = _rhythm(view, last)
        text = f"  printed  {age(last.age_s)} ago{usually}: [{where}] {last.line}"
        style = "yellow" if silent else ""
        console.print(safe_text(text, style), no_wrap=True, overflow="ellipsis", soft_wrap=False)
    elif view.live and not last and not view.silent:
        console.print(safe_text("  printed  nothing yet"))


def _hang(console: Console, view: RunStatus) -> None:
    """Print that it stands still, and why."""
    if view.hung:
        quiet = age(time.time() - view.hung.since)
        console.print(safe_text(f"  hung     no rank has shown a sign of life for {quiet}", "red"))
    if view.verdict and view.verdict.kind != "unknown":
        console.print(safe_text(f"  why      {view.verdict.text}", "red"))
    if view.hung:
        console.print(safe_text(f"  stacks   clusterctl dump {view.run}"))


def slow_rank(node: str, one: Straggler) -> str:
    """Return a sentence about a rank for which the others wait."""
    where = f", at {one.where}" if one.where else ""
    text = f"the others wait {one.lost_percent} % of the time for rank {one.rank} on {node}"
    return f"{text}{where}: {one.reason}"


def fall(fell: Sequence[tuple[str, Fell]]) -> str:
    """Return a sentence about use that fell, by the node where it fell first."""
    (node, one), *others = fell
    use = "CPU" if one.what == "rank" else "GPU"
    which = f"{one.what}{'s' * (len(one.numbers) > 1)} {ranks.fold_ranks(one.numbers)}"
    more = f"; also on {name_hosts(name for name, _ in others)}" if others else ""
    when = f"{utc(one.since)[:16].replace('T', ' ')}Z"
    return (
        f"{use} use fell at {when} on {node}: {which}, from {one.before:.0f} % to"
        f" {one.now:.0f} %{more}"
    )


def _attempt(console: Console, view: RunStatus) -> None:
    """Print which attempt it is of a run that restarts."""
    if view.attempts > 1:
        why = f", after: {view.restart_reason}" if view.restart_reason else ""
        console.print(safe_text(f"  attempt  {view.attempt} of {view.attempts}{why}"))
    if view.time_left_s is not None:
        console.print(safe_text(f"  time     {duration(view.time_left_s)} left (max_time)"))
    if view.waits:
        left = duration(max(0.0, view.waits.until - time.time()))
        text = f"for a node to join, {left} more at most: {view.waits.why}"
        console.print(safe_text(f"  waits    {text}", "yellow"))
        gone = ",".join(n.node.name for n in view.nodes if n.state in {"lost", "unreachable"})
        hint = f"clusterctl join {view.run} --nodes {gone}" if gone else "clusterctl join --help"
        console.print(safe_text(f"  hint     {hint}"))
    if view.again:
        wait = max(0.0, view.again.at - time.time())
        text = f"attempt {view.again.attempt} in {duration(wait)}: {view.again.why}"
        console.print(safe_text(f"  next     {text}", "yellow"))


def pace_words(pace: JobProgress | None) -> str:
    """Return how far a job is: `step 3/50, 2.4 s a step, 1 min 58 s left`."""
    if pace is None:
        return ""
    total = "" if pace.total is None else f"/{pace.total}"
    parts = [f"step {pace.step}{total}"] if pace.step is not None else []
    if pace.of_epoch:
        parts = [f"{parts[0]} of epoch {pace.epoch:g}"]
    elif pace.epoch is not None:
        parts.append(f"epoch {pace.epoch:g}" + (f"/{pace.epochs}" if pace.epochs else ""))
    rate = pace.steps_per_s
    if rate:
        parts.append(f"{rate:.3g} steps/s" if rate >= 1 else f"{1 / rate:.3g} s a step")
    parts += [f"{duration(pace.eta_s)} left"] if pace.eta_s is not None else []
    return ", ".join(parts)


def _rhythm(view: RunStatus, last: LastLine) -> tuple[str, bool]:
    """Return how often a log usually grows, and whether it has been silent far longer."""
    usual = last.every_s
    if not usual or not view.live:
        return "", False
    silent = last.age_s > max(_SILENT_SECONDS, _SILENT_TIMES * usual)
    return (
        f" (usually every {usual:.1g} s)" if usual < 1 else f" (usually every {age(usual)})",
        silent,
    )


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


def show_no_restart(console: Console, view: RunStatus) -> None:
    """Print why a run that restarts was not started again; nothing of one that was stopped."""
    if view.no_restart and view.state in BAD_ENDS:
        console.print(safe_text(f"not started again: {view.no_restart}"))


def show_time_over(console: Console, view: RunStatus) -> None:
    """Print how a run continues that its time limit has stopped, or that left no first cause."""
    saves = any(one.checkpoints for one in view.node_runs.values())
    vanished = view.state == "lost" and view.first_cause is None
    if saves and (view.ended_by == "max-time" or vanished):
        command = f"clusterctl resume {view.run} --checkpoint latest"
        console.print(safe_text(f"hint: {command}"), soft_wrap=True)


def unanswered(view: RunStatus) -> str:
    """Return how many nodes did not answer: `1 of 3 nodes did not answer`."""
    return f"{len(view.silent)} of {counted(len(view.nodes), 'node')} did not answer"


def _print_nodes(console: Console, view: RunStatus) -> None:
    usages = [
        _usage(one.node_run.usage if one.node_run else None) | _slow(view, one.node.name)
        for one in view.nodes
    ]
    # A column that no node has a word for is left out, such as the GPUs of CPU nodes.
    columns = [title for title in _USAGE if any(title in used for used in usages)]
    rows: Iterator[list[str | Text]] = (
        [
            answer.node.name,
            _state(answer),
            ranks.fold_ranks(rank.rank for rank in answer.ranks),
            _joined(answer),
            *(used.get(title, "") for title in columns),
            _note(answer),
        ]
        for answer, used in zip(view.nodes, usages, strict=True)
    )
    print_table(console, ("node", "state", "ranks", "joined", *columns, ""), rows)


def _slurm(job: Mapping[str, str]) -> str:
    state = f"{job['state']} ({job['reason']})" if job["reason"] else job["state"]
    return " ".join(filter(None, [f"job {job['job']}", state, job["nodes"]]))


def _ray(cluster: RayCluster) -> str:
    cpus = counted(round(sum(node.cpus for node in cluster.nodes)), "CPU")
    gpus = counted(round(sum(node.gpus for node in cluster.nodes)), "GPU")
    found = f"{counted(len(cluster.nodes), 'node')}, {cpus}, {gpus}"
    return f"{cluster.version} at {cluster.address}: {found}; its workers do not report"


def _state(answer: NodeAnswer) -> Text:
    """Return the word for a node: one that ended as it had lost another is not lost itself."""
    after_loss = answer.state == "lost" and answer.end is not None and not answer.cleared_up
    word = "failed" if after_loss else answer.state
    return safe_text(word, STYLES.get(word, ""))


def _joined(answer: NodeAnswer) -> str:
    return f"{answer.joined}/{len(answer.ranks)}" if answer.ranks else ""


def _usage(used: Usage | None) -> dict[str, str]:
    """Return what a node's ranks use, by column: of several ranks the least and the most."""
    if used is None:
        return {}
    each = used.ranks or (used,)
    found = {"memory": _spread([one.memory_bytes for one in each], size)}
    busy = [one.cpu_percent for one in each if one.cpu_percent is not None]
    if busy:
        found["CPU"] = _spread(busy, "{} %".format)
    if used.gpus:
        found["GPUs"] = _gpus(used.gpus)
    return found


def _slow(view: RunStatus, node: str) -> dict[str, str]:
    """Return the ranks of a node for which the others wait, as its column shows them."""
    found = [f"{one.rank} ({one.lost_percent} %)" for name, one in view.stragglers if name == node]
    return {"slow": ", ".join(found)} if found else {}


def _spread(values: Sequence[int], shown: Callable[[int], str]) -> str:
    """Return one value, or the least and the most: `91 % to 99 %`."""
    return " to ".join(dict.fromkeys((shown(min(values)), shown(max(values)))))


def size(count: int) -> str:
    """Return bytes of memory, such as `1.5 GiB`."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def _gpus(gpus: Sequence[GpuUsage]) -> str:
    """Return what all GPUs of a node do: `8 at 91-99 %, 71 of 80 GiB`."""
    busy = [gpu.percent for gpu in gpus if gpu.percent is not None]
    spread = [str(each) for each in sorted({min(busy), max(busy)})] if busy else ["?"]
    used = [gpu.memory_used_bytes or 0 for gpu in gpus]
    total = [gpu.memory_total_bytes or 0 for gpu in gpus]
    memory = f"{max(used) / _GIB:.0f} of {max(total) / _GIB:.0f} GiB"
    return f"{len(gpus)} at {'-'.join(spread)} %, {memory}"


def _note(answer: NodeAnswer) -> str:
    if answer.left_out:
        left = answer.left_out
        place = f"; {left.spare} has its place" if left.spare else ""
        return f"after attempt {left.attempt}: {left.why}{place}"
    if answer.error:
        return str(answer.error)
    if answer.end:
        return answer.end.reason
    return answer.node_run.why_gone if answer.node_run else ""


def command_line(command: Sequence[str]) -> str:
    """Return a command without its Python interpreter."""
    first, *rest = command or ("",)
    python = rest and re.fullmatch(r"python[\d.]*", first.rpartition("/")[2])
    return shlex.join(rest if python else command)
