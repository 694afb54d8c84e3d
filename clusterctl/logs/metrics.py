"""What a training recorded of its steps, read from the lines of metrics.jsonl; and its numbers."""

from __future__ import annotations

import json
import math
from bisect import bisect, bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from clusterctl.values import dataclass

SLACK_SECONDS = 2.0
"""By which the clocks of the nodes may differ."""
_STEPS, _LARGEST = 1 << 53, 1e100
_NAMES: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "train_loss", "train/loss"),
    "seconds": ("step_s", "step_time", "step_seconds"),
    "tokens_per_s": ("tok_s", "tokens_per_second", "tokens_per_s"),
    "memory_bytes": ("memory_max", "memory"),
    "eval_loss": ("eval_loss", "val_loss", "eval/loss"),
}
"""What is read → its names in a line, of which the first one found counts."""
_WARM_UP = 1
"""Steps at the beginning whose time does not count: they compile and fill caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, or an evaluation, as the training recorded it; None: it did not record that."""

    step: int
    time: float | None = None
    """By the clock of the node."""
    loss: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks together."""
    memory_bytes: float | None = None
    """The most of any rank."""
    eval_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a run recorded of its steps, in their order; a step that was done again counts once."""

    file: str = ""
    """Where on the node; empty: nothing was found."""
    node: str = ""
    every: int = 1
    """It has only every so many-th step: there are too many."""
    restarts: tuple[float, ...] = ()
    """When each attempt of the run but the first began, the earliest first."""
    steps: tuple[Step, ...] = ()

    def curve(self, name: str) -> tuple[tuple[int, float], ...]:
        """Return a field of `Step` that is a number, by step."""
        found = ((one.step, getattr(one, name)) for one in self.steps)
        return tuple((step, value) for step, value in found if value is not None)

    @property
    def last_step(self) -> int | None:
        """The last step that was done."""
        return self.steps[-1].step if self.steps else None

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds of each step but the first, in no order; by the times if none is recorded."""
        told = [value for _, value in self.curve("seconds")][_WARM_UP:]
        return tuple(told or self._gaps())

    def _gaps(self) -> Iterator[float]:
        timed = self.curve("time")
        for (before, began), (after, ended) in pairwise(timed[_WARM_UP:]):
            paused = bisect(self.restarts, began) < bisect(self.restarts, ended)
            if after > before and ended >= began and not paused:
                yield (ended - began) / (after - before)

    @property
    def step_median_s(self) -> float | None:
        """The median time of a step."""
        return quantile(self.step_times, 0.5)

    @property
    def step_p95_s(self) -> float | None:
        """The time that 95 % of the steps took at most."""
        return quantile(self.step_times, 0.95)

    @property
    def tokens_per_s(self) -> float | None:
        """The median throughput of all ranks together."""
        told = [value for _, value in self.curve("tokens_per_s")]
        return median(told[_WARM_UP:] or told) if told else None

    @property
    def memory_bytes(self) -> float | None:
        """The most memory that a rank used."""
        return max((value for _, value in self.curve("memory_bytes")), default=None)

    @property
    def lost_seconds(self) -> float | None:
        """What restarts cost: from the last step that counts to the next one, less a step.

        That is the time of steps that were done again, of the pause and of the new start.
        """
        timed, usual = self.curve("time"), self.step_median_s or 0.0
        times, lost = [time for _, time in timed], []
        for began in self.restarts:
            at = bisect_left(times, began)
            if not 0 < at < len(timed):
                return None
            (before, ended), (after, again) = timed[at - 1 : at + 1]
            lost.append(max(0.0, again - ended - (after - before) * usual))
        return sum(lost)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value that a share of them does not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def read_metrics(
    data: bytes,
    *,
    began: float = 0.0,
    ended: float | None = None,
    file: str = "",
    node: str = "",
    every: int = 1,
    restarts: tuple[float, ...] = (),
) -> Metrics:
    """Read the lines that are of a run; what is none is skipped.

    Args:
        began: when the run began: earlier ones are of another run, which wrote to the same file.
        ended: when it ended; None: it has not.
        file: where they were, on the node.
        node: which one.
        every: of how many steps each of them has one.
        restarts: when each attempt of the run but the first began.
    """
    until = math.inf if ended is None else ended + SLACK_SECONDS
    steps: dict[int, Step] = {}
    evaluations: dict[int, float] = {}
    for line in data.splitlines():
        one = _step(line)
        if one is None or not began - SLACK_SECONDS <= (one.time or began) <= until:
            continue
        if one.eval_loss is not None:
            evaluations[one.step] = one.eval_loss
        if one.eval_loss is not None and one.loss is None:
            continue
        known = steps.get(one.step)
        # If it was resumed, it does them again.
        _forget(steps, one.step)
        _forget(evaluations, one.step + 1)
        # Some trainings write a line for each value.
        steps[one.step] = _merged(known, one)
    for step, loss in evaluations.items():
        steps[step] = _merged(steps.get(step), Step(step=step, eval_loss=loss))
    ordered = tuple(steps[step] for step in sorted(steps))
    return Metrics(file=file, node=node, every=every, restarts=restarts, steps=ordered)


def _forget(table: dict[int, Any], step: int) -> None:
    """Delete the last entries, from this step on."""
    while table and next(reversed(table)) >= step:
        table.popitem()


def _merged(known: Step | None, one: Step) -> Step:
    """Return what the newer line says of a step, and of the other what it leaves out."""
    if known is None:
        return one
    told = {name: getattr(one, name) for name in ("time", *_NAMES)}
    return replace(known, **{name: value for name, value in told.items() if value is not None})


def _step(line: bytes) -> Step | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    step = _number(record.get("step"))
    if step is None or step != int(step) or not 0 <= step <= _STEPS:
        return None
    found = {
        field: next(filter(_is_known, (_number(record.get(name)) for name in names)), None)
        for field, names in _NAMES.items()
    }
    return Step(step=int(step), time=_number(record.get("time")), **found)


def _is_known(value: float | None) -> bool:
    return value is not None


def _number(value: object) -> float | None:
    """Return a number, of which sums and quotients are finite; a node may claim anything."""
    if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value) if abs(value) >= 1 / _LARGEST else 0.0
