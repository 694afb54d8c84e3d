"""Draw a run's losses and speed: `python -m train.tools.plot OUTPUT_DIR [...] [-o FILE.png]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from train.observe.records import NAME, read

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the runs' metrics.jsonl into one picture."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders, or metrics.jsonl files")
    parser.add_argument("-o", "--output", type=Path, help="default: plot.png beside the first")
    options = parser.parse_args(argv)
    files = [path / NAME if path.is_dir() else path for path in options.runs]
    missing = [path for path in files if not path.is_file()]
    if missing:
        print(f"error: {missing[0]}: expected a run's {NAME}, found none", file=sys.stderr)
        return 2
    records = {path: list(read(path)) for path in files}
    empty = [path for path, found in records.items() if not series(found, "step", "loss")]
    if empty:
        print(f"error: {empty[0]}: expected steps, found none yet", file=sys.stderr)
        return 2
    for path, found in records.items():
        print("\n".join(summary(path, found)))
    target = options.output or files[0].with_name("plot.png")
    try:
        draw(records, target)
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
        return 0
    except (OSError, ValueError) as error:  # the latter for a kind of file that is not known
        print(f"error: {target}: expected a picture written, found: {error}", file=sys.stderr)
        return 2
    print(f"picture: {target}")
    return 0


def series(records: Sequence[dict[str, Any]], kind: str, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of the records of a kind that have the value."""
    return [
        (record["step"], float(record[name]))
        for record in records
        if record.get("kind") == kind and record.get(name) is not None
    ]


def summary(path: Path, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return a run in a few lines, its losses as bars."""
    losses = [value for _, value in series(records, "step", "loss")]
    steps = [step for step, _ in series(records, "step", "loss")]
    lines = [
        f"{path}: steps {steps[0]} to {steps[-1]}",
        f"  loss      {losses[0]:.4f} -> {losses[-1]:.4f}  {bars(losses)}",
    ]
    evaluated = [value for _, value in series(records, "eval", "eval_loss")]
    if evaluated:
        lines.append(f"  eval loss {evaluated[0]:.4f} -> {evaluated[-1]:.4f}  {bars(evaluated)}")
    speeds = [value for _, value in series(records, "step", "tok_s")]
    if speeds:
        lines.append(f"  tokens/s  {median(speeds):,.0f} in the middle  {bars(speeds)}")
    return lines


def bars(values: Sequence[float]) -> str:
    """Return values as a row of block characters."""
    step = max(1, -(-len(values) // WIDTH))
    shown = [values[i] for i in range(0, len(values), step)]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 2) / (high - low) if high > low else 0
    return "".join(BARS[1 + round((value - low) * scale)] for value in shown)


def draw(records: dict[Path, list[dict[str, Any]]], target: Path) -> None:
    """Write the picture: losses above, tokens a second below.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: its ending is of no kind of picture.
    """
    import matplotlib as mpl  # noqa: PLC0415  (optional, and slow)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=(2, 1))
    for path, found in records.items():
        name = path.parent.name if len(records) > 1 else ""
        steps, losses = zip(*series(found, "step", "loss"), strict=True)
        (line,) = above.plot(steps, losses, linewidth=1, alpha=0.7, label=f"{name} loss".strip())
        evaluated = series(found, "eval", "eval_loss")
        if evaluated:
            above.plot(
                *zip(*evaluated, strict=True),
                marker="o",
                linestyle="--",
                color=line.get_color(),
                label=f"{name} eval loss".strip(),
            )
        speed = series(found, "step", "tok_s")
        below.plot(*zip(*speed, strict=True), linewidth=1, color=line.get_color())
    above.set_title(", ".join(str(path.parent) for path in records), fontsize=10)
    above.set_ylabel("loss")
    above.legend()
    above.grid(alpha=0.3)
    below.set_ylabel("tokens/s")
    below.set_xlabel("step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    below.set_ylim(bottom=0)
    below.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
