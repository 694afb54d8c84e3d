"""A run as a page to send: plan, nodes, checks, what happened, curves, first cause, checkpoints."""

import shlex
from collections.abc import Iterator, Sequence

from clusterctl.checks.wording import counted
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.logs.excerpt import excerpt
from clusterctl.logs.first_cause import FirstCause
from clusterctl.model.from_json import from_json
from clusterctl.model.run_record import RecordedCause, RecordedPlan
from clusterctl.report.compare import moment_words, result_rows, where
from clusterctl.report.html.compare import plots
from clusterctl.report.html.frame import escaped, framed, page, table
from clusterctl.report.html.used import used
from clusterctl.report.lines import utc
from clusterctl.verbs.checkpoints.choose import ListedCheckpoint
from clusterctl.verbs.compare.comparison import Comparison, compare_runs
from clusterctl.verbs.compare.differences import TAKEN, changes_of, hidden, hide, hide_words
from clusterctl.verbs.compare.story import Story

_MOST = 200
"""Checkpoints and nodes with a row of their own."""


def run_page(story: Story, checkpoints: Sequence[ListedCheckpoint] = ()) -> str:
    """Return the run as one HTML document."""
    view = story.one.status
    outcome = compare_runs([story])
    head = f'<p class="verdict {escaped(view.state)}">{escaped(view.state)}</p>\n'
    happened = [
        (f"{utc(one.time)[:19]}Z", where(one), hide_words(moment_words(one)))
        for one in story.moments
    ]
    body = (
        head
        + table((), _summary(story, outcome))
        + _cause(view.first_cause)
        + plots({story.one.line.short or story.run: story.metrics})
        + used(story)
        + "<h2>What happened</h2>\n"
        + table(("when", "where", "what"), happened)
        + "<h2>Nodes</h2>\n"
        + table(("node", "ranks", "state", "machine", "versions", "end"), _nodes(story))
        + _checks(story)
        + _checkpoints(checkpoints)
        + _job(story)
    )
    return page(f"clusterctl: run {view.title}", framed(body))


def _summary(story: Story, outcome: Comparison) -> Iterator[tuple[str, str]]:
    line, record = story.one.line, story.record
    yield "command", shlex.join(hidden(story.one.status.command))
    if record is not None and record.by:
        yield "launched by", record.by
    for title, moment in (("began", line.began), ("ended", line.ended)):
        if moment:
            yield title, f"{utc(moment)[:19]}Z"
    if line.parent:
        yield "resumed from", f"{line.parent} {line.checkpoint}"
    if line.commit:
        changed = f", with uncommitted changes: {changes_of(story.diff)}" if line.dirty else ""
        yield "code", f"commit {line.commit}{changed}"
    for title, (cell,) in result_rows(outcome):
        if title not in {"name", "state"}:
            yield title, cell
    if line.reason:
        yield "why", hide_words(line.reason)


def _cause(cause: FirstCause | RecordedCause | None) -> str:
    if cause is None:
        return ""
    place = cause.node if cause.rank is None else f"{cause.node}, rank {cause.rank}"
    remedy = f"<p>hint: {escaped(cause.remedy)}</p>\n" if cause.remedy else ""
    lines = "\n".join(hide_words(one) for one in excerpt(cause.lines))
    shown = f"<pre>{escaped(lines)}</pre>\n" if lines else ""
    also = f"<p>Also: {escaped(', '.join(cause.also))}</p>\n" if cause.also else ""
    message = escaped(hide_words(cause.message))
    return f"<h2>First cause</h2>\n<p>{escaped(place)}: {message}</p>\n{remedy}{shown}{also}"


def _nodes(story: Story) -> Iterator[tuple[str, ...]]:
    facts, plan = story.facts or {}, story.record.plan if story.record else {}
    recorded: RecordedPlan = from_json(RecordedPlan, plan, "plan")
    planned = {one.node: one for one in recorded.nodes}
    for answer in story.one.status.nodes[:_MOST]:
        known, name = planned.get(answer.node.name), answer.node.name
        ranks = len(answer.ranks) or (known.procs if known else None)
        end = answer.end
        why = str(answer.error) if answer.error else end.reason if end else ""
        device = f" ({known.device})" if known and known.device else ""
        cells = _machine(facts[name]) if name in facts else ("not recorded", "not recorded")
        yield name, f"{ranks or ''}{device}", answer.state, *cells, hide_words(why)
    if (more := len(story.one.status.nodes) - _MOST) > 0:
        yield f"{more} more", "", "", "", "", ""


def _machine(node: NodeFacts) -> tuple[str, str]:
    gpus, python = node.gpus, node.python
    names = [one.name for one in gpus.devices] if gpus else []
    machine = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    machine += [f"{node.cpus} CPUs"] if node.cpus else []
    machine += [f"Linux {node.kernel}"] if node.kernel else []
    versions = [f"driver {gpus.driver}"] if gpus and gpus.driver else []
    if python is not None and python.version:
        versions += [f"Python {python.version}"]
        versions += [f"torch {v}" for v in [python.package("torch")] if v]
        versions += [f"NCCL {python.torch.nccl}"] if python.torch and python.torch.nccl else []
    return ", ".join(machine), ", ".join(versions)


def _checks(story: Story) -> str:
    if story.record is None:
        return ""
    rows = [
        (one.get("status"), one.get("check"), ", ".join(map(str, one.get("nodes") or ())),
         one.get("message"))
        for one in story.record.findings
        if one.get("status") != "skip"
    ]  # fmt: skip
    title = "<h2>Checks before the launch</h2>\n"
    if not rows:
        return f"{title}<p>No check failed or warned.</p>\n"
    return title + table(("status", "check", "nodes", "message"), rows)


def _checkpoints(found: Sequence[ListedCheckpoint]) -> str:
    if not found:
        return ""
    rows = [
        (one.name, "" if one.step is None else one.step, f"{utc(one.time)[:19]}Z",
         one.why or "looks complete")
        for one in found[:_MOST]
    ]  # fmt: skip
    title = f"<h2>{counted(len(found), 'checkpoint')}</h2>\n"
    return title + table(("name", "step", "written", "state"), rows)


def _job(story: Story) -> str:
    """Return the environment that the job was given; what looks like a secret is hidden."""
    if story.record is None:
        return ""
    job = story.record.cluster.job
    rows = [("launcher", job.launcher), *((name, hide(name, value)) for name, value in job.env)]
    rows += [(name, TAKEN) for name in job.env_from]
    return f"<h2>Job</h2>\n{table((), rows)}"
