"""Compares runs: what differs between them, and what came of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from clusterctl.values import dataclass
from clusterctl.verbs.compare.commits import CommitChange
from clusterctl.verbs.compare.differences import (
    Difference,
    compare,
    hidden,
    hide_words,
    summary_of_same,
)
from clusterctl.verbs.compare.story import Story
from clusterctl.wire import SCHEMA, plain

_SHARES = (0.25, 0.5, 1.0)
"""Of the steps that all runs have done: where their losses are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What came of a run; null: not recorded."""

    run: str
    """The run's id."""
    short: str
    """The end of its id, which no other run has."""
    name: str
    """The user's own name for it; may be empty."""
    state: str
    """Its state."""
    ended_by: str
    """What ended it."""
    why: str
    """Why it ended so, in words; empty if it finished or lives."""
    command: tuple[str, ...]
    """Its command; what looks like a secret is `***`."""
    nodes: tuple[str, ...]
    """Its nodes."""
    ranks: int | None
    """The number of its ranks."""
    began: float | None
    """When it began."""
    took_s: float | None
    """From its launch to its end."""
    steps: int | None
    """The last step that it recorded."""
    tokens_per_s: float | None
    """The median throughput of all ranks together."""
    step_median_s: float | None
    """The median time of a step."""
    step_p95_s: float | None
    """The time that 95 % of its steps took at most."""
    loss: float | None
    """The loss of its last step."""
    eval_loss: float | None
    """The loss of its last evaluation."""
    memory_bytes: int | None
    """The most memory that a rank used; if it recorded none, of its processes without GPUs."""
    gpu_percent: float | None
    """How busy its GPUs were on average."""
    cpu_percent: float | None
    """The CPU time of a node on average; 100 is one core."""
    attempts: int
    """How often it was started."""
    restarts: int
    """How often the launcher started its ranks again."""
    lost_s: float
    """Lost by restarts: steps that were done again, pauses and new starts."""
    metrics: str
    """Its file of metrics, as `NODE:PATH`; empty: none was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """How much faster a run is than the first one."""

    run: str
    """The run's id."""
    speedup: float
    """2: twice as fast."""
    measured: str
    """By `tokens/s`, or by `steps/s` if not all runs record tokens."""
    ranks: float | None
    """How many times as many ranks it has; null: not recorded."""
    efficiency: float | None
    """Speedup for each rank: 1 is perfect; null: it has as many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAt:
    """The losses of all runs at one step."""

    step: int
    """The step."""
    losses: tuple[float, ...]
    """In the order of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs next to each other; the first is what the others are compared with."""

    runs: tuple[RunOutcome, ...]
    """What came of each run, in the order in which they were named."""
    differences: tuple[Difference, ...]
    """What is not the same in all runs."""
    same: Mapping[str, tuple[str, ...]]
    """By block, the names of what is equal in all runs."""
    not_recorded: Mapping[str, tuple[str, ...]]
    """By block, the runs of which nothing is recorded."""
    speedups: tuple[Speedup, ...]
    """Of the other runs; none if the steps of one are not recorded."""
    losses: tuple[LossAt, ...]
    """At steps that all runs recorded."""
    all_same: str
    """What is equal, in one line."""
    commits: tuple[CommitChange, ...]
    """Of the runs with another commit than the first, if git knows both here."""

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `runs compare --json` prints."""
        return {"schema": SCHEMA, **plain(self)}


def compare_runs(stories: Sequence[Story], commits: Iterable[CommitChange] = ()) -> Comparison:
    """Compare two runs or more; `commits`: how their code differs, by git."""
    compared = compare(stories)
    runs = tuple(outcome(story) for story in stories)
    return Comparison(
        runs=runs,
        differences=compared.differences,
        same=compared.same,
        not_recorded=compared.not_recorded,
        speedups=tuple(filter(None, (_speedup(runs, one) for one in runs[1:]))),
        losses=_losses(stories),
        all_same=summary_of_same(compared),
        commits=tuple(commits),
    )


def outcome(story: Story) -> RunOutcome:
    """Return what came of one run."""
    line, view, metrics = story.one.line, story.one.status, story.metrics
    losses, evaluations = metrics.curve("loss"), metrics.curve("eval_loss")
    plan = dict(story.record.plan) if story.record else {}
    size = plan.get("world_size")
    memory = metrics.memory_bytes
    nodes = story.samples.values()
    if memory is None:
        used = [v for one in nodes for rank in one.ranks for v in rank.memory_bytes]
        memory = max((v for v in used if v is not None), default=None)
    return RunOutcome(
        run=line.run,
        short=line.short or line.run,
        name=line.name,
        state=line.state,
        ended_by=line.ended_by,
        why=hide_words(line.reason),
        command=hidden(line.command),
        nodes=line.nodes,
        ranks=size if isinstance(size, int) else None,
        began=line.began,
        took_s=line.ended - line.began if line.ended and line.began else None,
        steps=metrics.last_step if metrics.steps else line.step,
        tokens_per_s=metrics.tokens_per_s,
        step_median_s=metrics.step_median_s,
        step_p95_s=metrics.step_p95_s,
        loss=losses[-1][1] if losses else None,
        eval_loss=evaluations[-1][1] if evaluations else None,
        memory_bytes=None if memory is None else int(memory),
        gpu_percent=_mean([v for one in nodes for gpu in one.gpus for v in gpu.percent]),
        cpu_percent=_mean([v for one in nodes for v in one.cpu_percent]),
        attempts=line.attempt,
        restarts=view.restarts,
        lost_s=story.lost_seconds,
        metrics=f"{metrics.node}:{metrics.file}" if metrics.file else "",
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _speedup(runs: Sequence[RunOutcome], other: RunOutcome) -> Speedup | None:
    first = runs[0]
    if all(one.tokens_per_s for one in runs) and first.tokens_per_s and other.tokens_per_s:
        measured, ratio = "tokens/s", other.tokens_per_s / first.tokens_per_s
    elif first.step_median_s and other.step_median_s:
        measured, ratio = "steps/s", first.step_median_s / other.step_median_s
    else:
        return None
    ranks = other.ranks / first.ranks if first.ranks and other.ranks else None
    # Whether a step has the same tokens on more ranks is not known without them.
    scaled = ranks not in {None, 1.0} and measured == "tokens/s"
    efficiency = ratio / ranks if ranks and scaled else None
    return Speedup(
        run=other.run, speedup=ratio, measured=measured, ranks=ranks, efficiency=efficiency
    )


def _losses(stories: Sequence[Story]) -> tuple[LossAt, ...]:
    """Return the losses at some of the steps that all runs recorded, the last one too."""
    if len(stories) == 1:
        return ()
    curves = [dict(story.metrics.curve("loss")) for story in stories]
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not common:
        return ()
    at = dict.fromkeys(common[max(0, round(share * len(common)) - 1)] for share in _SHARES)
    return tuple(LossAt(step=one, losses=tuple(curve[one] for curve in curves)) for one in at)
