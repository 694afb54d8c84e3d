"""The report: a page to attach to an issue, rows for programs, a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu.figures import Figure
from bench.gpu.machine import Machine
from bench.gpu.masks import Masks
from bench.gpu.steps import Result

PAGE, ROWS = "report.md", "report.jsonl"
LAST_LINES = 30
CPU_NOTE = "On a CPU with a tiny model: this proves the script, not the figures."


def heading(machine: Machine, *, cpu: bool) -> list[str]:
    """Return what the figures were measured with."""
    names = sorted(set(machine.gpus))
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in names) or "no GPU"
    version = ".".join(map(str, machine.version))
    lines = [f"{gpus}; torch {machine.torch}, CUDA {machine.cuda or 'none'}, Python {version}"]
    return [CPU_NOTE, *lines] if cpu else lines


def step_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return a row of cells for each step."""
    return [
        (each.name, each.state, f"{each.seconds:.1f}" if each.seconds else "-", each.reason)
        for each in results
    ]


def figure_rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Return a row of cells for each figure."""
    return [
        (
            each.name,
            "-" if each.value is None else f"{each.value:.4g} {each.unit}".strip(),
            each.expected or "-",
            each.verdict,
        )
        for each in figures
    ]


STEP_COLUMNS = ("step", "state", "seconds", "reason")
FIGURE_COLUMNS = ("figure", "found", "expected", "verdict")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal."""
    cells = [columns, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def write(
    folder: Path,
    *,
    title: Sequence[str],
    results: Sequence[Result],
    figures: Sequence[Figure],
    masks: Masks,
) -> None:
    """Write both files; of a step that is not ok, the page has the last lines."""
    rows: list[dict[str, Any]] = [{"kind": "machine", "about": list(title)}]
    rows += [{"kind": "step", **asdict(each)} for each in results]
    rows += [{"kind": "figure", **asdict(each)} for each in figures]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / ROWS).write_text(masks.apply(text), encoding="utf-8")
    parts = ["# `make gpu`", *title, "## Steps", markdown(STEP_COLUMNS, step_rows(results))]
    parts += ["## Figures", markdown(FIGURE_COLUMNS, figure_rows(figures))]
    for each in results:
        log = folder / "steps" / f"{each.name}.txt"
        if each.state not in {"ok", "skipped"} and log.exists():
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
            fenced = "\n".join(line.replace("```", "'''") for line in last)
            parts += [f"## {each.name}: {each.state}", f"```text\n{fenced}\n```"]
    (folder / PAGE).write_text(masks.apply("\n\n".join(parts)) + "\n", encoding="utf-8")
