"""What several runs' metrics.jsonl say next to each other: curves by step, and one row a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CURVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "loss": ("step", ("loss",)),
    "eval_loss": ("eval", ("eval_loss",)),
    "tokens_per_second": ("step", ("tok_s",)),
    "memory": ("step", ("memory_max", "memory")),
}
"""Curve → the kind of its records, and the names of its value: the first one found counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a comparison."""

    name: str
    curves: Mapping[str, Mapping[int, float]]
    """Each of CURVES as step → value, in the order of the steps."""

    @property
    def steps(self) -> int:
        """The last step that was done."""
        return max(self.curves["loss"], default=0)

    @property
    def loss(self) -> float | None:
        """The loss of the last step."""
        return self.curves["loss"].get(self.steps)

    @property
    def best_eval(self) -> tuple[int, float] | None:
        """Step and value of the lowest evaluation loss."""
        finite = ((s, v) for s, v in self.curves["eval_loss"].items() if math.isfinite(v))
        return min(finite, key=lambda point: point[1], default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """The median over all steps."""
        return median(speeds) if (speeds := self.curves["tokens_per_second"].values()) else None

    @property
    def peak_memory(self) -> float | None:
        """The most bytes of one rank."""
        return max(self.curves["memory"].values(), default=None)

    def row(self) -> dict[str, Any]:
        """Return the run in one row, as JSON has it."""
        step, best = self.best_eval or (None, None)
        loss = self.loss
        return {
            "name": self.name,
            "steps": self.steps,
            "loss": loss if loss is None or math.isfinite(loss) else str(loss),
            "best_eval_loss": best,
            "best_eval_step": step,
            "median_tokens_per_second": self.tokens_per_second,
            "peak_memory_bytes": self.peak_memory,
        }


def compare(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[Run, ...]:
    """Return what the runs' records say, in the order of the runs.

    Args:
        runs: Name → records as metrics.jsonl has them. Where the steps go back, as after a
            resume, the later records count, and the earlier ones from that step on do not.
    """
    return tuple(Run(name=name, curves=_curves(records)) for name, records in runs.items())


def _curves(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    last = -1
    for record in records:
        step, kind = record["step"], record.get("kind")
        if kind == "step":
            if step <= last:
                curves = {
                    name: {at: value for at, value in curve.items() if at < step}
                    for name, curve in curves.items()
                }
            last = step
        for name, (wanted, keys) in CURVES.items():
            value = next((record[key] for key in keys if record.get(key) is not None), None)
            if kind == wanted and (number := _number(value)) is not None:
                curves[name][step] = number
    return {name: dict(sorted(curve.items())) for name, curve in curves.items()}


def _number(value: object) -> float | None:
    """Return a number; a loss that is none is written as text (`nan`)."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
