"""Compare runs: `python -m train.tools.plot RUN [RUN ...] [--output FILE.png] [--json]`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from typing import Any

from train.observe.records import NAME, read

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = ".:-=+*#@"
"""For a terminal that has no others."""
WIDTH = 80
LABEL = 18
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What is drawn of a run, by step."""

    title: str
    kind: str
    """Of its records."""
    keys: tuple[str, ...]
    """Names of its value in a record: the first one found counts."""
    unit: int = 1


CURVES: Mapping[str, Curve] = {
    "loss": Curve(title="loss", kind="step", keys=("loss",)),
    "eval_loss": Curve(title="eval loss", kind="eval", keys=("eval_loss",)),
    "tokens_per_second": Curve(title="tokens/s", kind="step", keys=("tok_s",)),
    "memory": Curve(title="memory, GiB", kind="step", keys=("memory_max", "memory"), unit=GIB),
}


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

    def row(self) -> dict[str, Any]:
        """Return the run in one row, as JSON has it."""
        step, best = self.best_eval or (None, None)
        loss, speeds = self.loss, self.curves["tokens_per_second"].values()
        return {
            "name": self.name,
            "steps": self.steps,
            "loss": loss if loss is None or math.isfinite(loss) else str(loss),
            "best_eval_loss": best,
            "best_eval_step": step,
            "median_tokens_per_second": median(speeds) if speeds else None,
            "peak_memory_bytes": max(self.curves["memory"].values(), default=None),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and curves of the runs, and draw them into one picture."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders, or metrics.jsonl files")
    parser.add_argument(
        "-o", "--output", type=Path, help="the picture; default: plot.png next to the first run"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON only")
    options = parser.parse_args(argv)
    files = [path / NAME if path.is_dir() else path for path in dict.fromkeys(options.runs)]
    runs, problems = _read(dict(zip(_names(files), files, strict=True)))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if runs and options.json:
        print(json.dumps({"schema": 1, "runs": [run.row() for run in runs]}, indent=2))
    elif runs:
        bars = BARS if _prints(BARS) else PLAIN_BARS
        print("\n".join((*table(runs), *curves(runs, bars))))
    if runs and (options.output or not options.json):
        target = options.output or files[0].with_name("plot.png")
        problems += _picture(runs, target, is_asked_for=options.output is not None)
    return 2 if problems else 0


def compare(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[Run, ...]:
    """Return what the runs' records say, in the order of the runs: name → lines of metrics.jsonl.

    Where the steps go back, as after a resume, the later records count, and the earlier ones from
    that step on do not.
    """
    return tuple(Run(name=name, curves=_curves(records)) for name, records in runs.items())


def _curves(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    last = -1
    for record in records:
        step, kind = record["step"], record.get("kind")
        if kind == "step":
            if step <= last:
                for name, values in found.items():
                    found[name] = {at: value for at, value in values.items() if at < step}
            last = step
        for name, curve in CURVES.items():
            value = next((record[key] for key in curve.keys if record.get(key) is not None), None)
            if kind == curve.kind and (number := _number(value)) is not None:
                found[name][step] = number
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def _number(value: object) -> float | None:
    """Return a number; a loss that is none is written as text (`nan`)."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _read(files: Mapping[str, Path]) -> tuple[tuple[Run, ...], list[str]]:
    """Return the runs that have steps, and what is wrong with the others."""
    found: list[Run] = []
    problems = []
    for name, path in files.items():
        try:
            (run,) = compare({name: read(path)})
        except OSError as error:
            problems.append(f"{path}: expected a run's {NAME}, found: {error.strerror}")
            continue
        if run.curves["loss"]:
            found.append(run)
        else:
            problems.append(f"{path}: expected steps, found none yet")
    return tuple(found), problems


def _names(files: Sequence[Path]) -> list[str]:
    """Return each run's folder name, with as many folders above as make the names differ."""
    parts = [file.absolute().parent.parts for file in files]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(each[-depth:]) for each in parts]
    # Two files of one folder, such as one that was set aside.
    return [
        f"{name}/{file.name}" if names.count(name) > 1 else name
        for name, file in zip(names, files, strict=True)
    ]


def table(runs: Sequence[Run]) -> list[str]:
    """Return one line a run, at most 80 columns."""
    head = ("#", "run", "steps", "loss", "best eval", "tokens/s", "memory")
    rows = [head, *(_cells(number, run) for number, run in enumerate(runs, 1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[1] = max(3, min(widths[1], WIDTH - sum(widths) + widths[1] - 2 * len(head) + 2))
    lines = []
    for number, name, *numbers in rows:
        cells = [number.rjust(widths[0]), _short(name, widths[1]).ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(numbers, widths[2:], strict=True)]
        lines.append("  ".join(cells))
    return lines


def _cells(number: int, run: Run) -> tuple[str, ...]:
    best, row = run.best_eval, run.row()
    speed, memory = row["median_tokens_per_second"], row["peak_memory_bytes"]
    return (
        str(number),
        run.name,
        str(run.steps),
        "-" if run.loss is None else f"{run.loss:.4f}",
        "-" if best is None else f"{best[1]:.4f} at {best[0]}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if memory is None else f"{memory / GIB:.2f} GiB",
    )


def _short(name: str, width: int) -> str:
    """Return the end of a name, which is what differs most."""
    return name if len(name) <= width else f"...{name[len(name) - width + 3 :]}"


def curves(runs: Sequence[Run], bars: str) -> list[str]:
    """Return each curve as a row of bars a run: all rows have the same steps and scale."""
    labels = [f"{number} {_short(run.name, LABEL - 2)}" for number, run in enumerate(runs, 1)]
    first = min(min(run.curves["loss"]) for run in runs)
    last = max(run.steps for run in runs)
    width = max(map(len, labels))
    columns = max(1, min(WIDTH - width - 4, last - first + 1))
    lines = []
    for name, curve in CURVES.items():
        rows = [_binned(run.curves[name], first, last, columns) for run in runs]
        shown = [value for row in rows for value in row if value is not None]
        if not shown:
            continue
        low, high = min(shown), max(shown)
        unit = curve.unit
        ends = [f"{value / unit:,.4f}" if value < 1000 * unit else f"{value:,.0f}"
                for value in (low, high)]  # fmt: skip
        scale = f"{bars[0]} {ends[0]}, {bars[-1]} {ends[1]}"
        lines += ["", f"{curve.title}, steps {first} to {last}: {scale}"]
        lines += [
            f"  {label:{width}}  {''.join(_bar(value, low, high, bars) for value in row)}".rstrip()
            for label, row in zip(labels, rows, strict=True)
            if any(value is not None for value in row)
        ]
    return lines


def _binned(curve: Mapping[int, float], first: int, last: int, columns: int) -> list[float | None]:
    """Return the mean of each column's steps; a column without any repeats the one before."""
    bins: list[list[float]] = [[] for _ in range(columns)]
    for step, value in curve.items():
        if math.isfinite(value):
            column = (max(step, first) - first) * columns // (last - first + 1)
            bins[min(column, columns - 1)].append(value)
    filled = [number for number, values in enumerate(bins) if values]
    row: list[float | None] = [None] * columns
    for number in range(filled[0], filled[-1] + 1) if filled else ():
        row[number] = fmean(bins[number]) if bins[number] else row[number - 1]
    return row


def _bar(value: float | None, low: float, high: float, bars: str) -> str:
    if value is None:
        return " "
    return bars[round((value - low) / (high - low) * (len(bars) - 1)) if high > low else 0]


def _prints(text: str) -> bool:
    """Whether stdout can show a text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _picture(runs: Sequence[Run], target: Path, *, is_asked_for: bool) -> list[str]:
    """Draw the picture, and return what went wrong; without matplotlib only if `is_asked_for`."""
    try:
        draw(runs, target)
    except ImportError:
        problem = f"{target}: no picture: matplotlib is not installed"
        prefix = "error: " if is_asked_for else ""
        print(f"{prefix}{problem}\nhint: pip install matplotlib", file=sys.stderr)
        return [problem] if is_asked_for else []
    except (OSError, ValueError) as error:  # the latter for a kind of file that is not known
        problem = f"{target}: expected a picture written, found: {error}"
        print(f"error: {problem}", file=sys.stderr)
        return [problem]
    print(f"picture: {target}", file=sys.stderr)
    return []


def draw(runs: Sequence[Run], target: Path) -> None:
    """Write the picture: a panel a curve; runs differ in color, dashes and markers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    shown = [name for name in CURVES if any(run.curves[name] for run in runs)]
    size = (9, 3 * len(shown))
    figure, axes = plt.subplots(len(shown), 1, figsize=size, sharex=True, squeeze=False)
    for axis, name in zip(axes.flat, shown, strict=True):
        curve, looks = CURVES[name], cycle(("-o", "--s", "-.^", ":D"))
        for number, (run, look) in enumerate(zip(runs, looks, strict=False), 1):
            values = [value / curve.unit for value in run.curves[name].values()]
            axis.plot(
                list(run.curves[name]), values, look, color=f"C{number - 1}", linewidth=1.2,
                markersize=4, markevery=max(1, len(values) // 20), label=f"{number} {run.name}",
            )  # fmt: skip
        axis.set_ylabel(curve.title)
        axis.grid(alpha=0.3)
        if name in {"tokens_per_second", "memory"}:
            axis.set_ylim(bottom=0)
            axis.yaxis.set_major_formatter("{x:,g}")
    axes[0, 0].legend()
    axes[-1, 0].set_xlabel("step")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
