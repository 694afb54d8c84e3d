"""Prints what `check --deep` tried: the rungs, then each node's GPUs."""

from collections.abc import Iterable

from rich.console import Console

from clusterctl.facts.ladder import Ladder
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import print_table
from clusterctl.verbs.preflight.check import CheckResult
from clusterctl.verbs.preflight.rungs import TITLES, RungRow, rung_rows

WHOLE = 100
"""Speeds from here on need no decimals."""
FEW = 16
"""So many nodes have a line each; more have none, and the findings name those that differ."""


def print_ladder(console: Console, result: CheckResult) -> None:
    """Print a table of the rungs, if there was a ladder."""
    rows = rung_rows(result.facts)
    if not rows:
        return
    cells = ((TITLES[row.name], _result(row), f"{row.seconds:.1f}") for row in rows)
    console.print()
    print_table(console, ("rung", "result", "seconds"), cells, right=("seconds",))
    _print_gpus(console, result)


def _result(row: RungRow) -> str:
    if not row.tried:
        return "not tried"
    return f"BROKEN on {fold_hosts(row.broken)}" if row.broken else "ok"


def _print_gpus(console: Console, result: CheckResult) -> None:
    ladders = {
        name: node.ladder for name, node in result.facts.items() if node.ladder and node.ladder.gpus
    }
    if not ladders or len(ladders) > FEW:
        return
    numbers = ("GPUs", "TFLOP/s", "memory GB/s", "Gb/s inside", "Gb/s across")
    rows = (
        (
            name,
            str(len(ladder.gpus)),
            span(trial.tflops for trial in ladder.gpus),
            span(trial.memory_gb_s for trial in ladder.gpus),
            span(trial.gbps for trial in ladder.inside),
            span(rail.gbps for rail in ladder.rails),
            networks(ladder),
        )
        for name, ladder in ladders.items()
    )
    console.print()
    print_table(console, ("node", *numbers, "by"), rows, right=numbers)


def span(speeds: Iterable[float | None]) -> str:
    """Return the slowest and the fastest: `611 to 640`."""
    known = [speed for speed in speeds if speed is not None]
    shown = list(dict.fromkeys(map(_short, (min(known), max(known))))) if known else []
    return " to ".join(shown) or "-"


def _short(speed: float) -> str:
    return f"{speed:.0f}" if speed >= WHOLE else f"{speed:.3g}"


def networks(ladder: Ladder) -> str:
    """Return by which networks NCCL reached other nodes: `IB`, or `-` if it did not say."""
    used = dict.fromkeys(rail.transport.network for rail in ladder.rails if rail.transport)
    return ", ".join(name for name in used if name) or "-"
