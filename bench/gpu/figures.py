"""What the steps measured, next to what is expected; a pure function of what they printed."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

from bench.gpu.plan import VARIANTS
from bench.gpu_train import SIDES

GIB = 2**30
WARM = 4
"""Steps of a variant left out."""

Verdict = Literal["ok", "differs", "not judged", "unknown"]
"""`unknown`: a step ended ok, and what it printed could not be read."""

_ESTIMATE = re.compile(r"memory\s+about ([\d.]+) GiB(?:.*?overhead ([\d.]+))?")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number."""

    name: str
    value: float | None
    unit: str = ""
    expected: str = ""
    verdict: Verdict = "not judged"


def figure(
    name: str, value: float | None, unit: str = "", *,
    least: float | None = None, most: float | None = None,
) -> Figure:  # fmt: skip
    """Return a figure, judged if there is an expectation."""
    bounds = [
        f"{sign} {bound:g}" for sign, bound in (("≥", least), ("≤", most)) if bound is not None
    ]
    verdict: Verdict = "not judged"
    if value is None:
        verdict = "unknown"
    elif bounds:
        fits = (least is None or value >= least) and (most is None or value <= most)
        verdict = "ok" if fits else "differs"
    return Figure(name=name, value=value, unit=unit, expected=" and ".join(bounds), verdict=verdict)


def collect(outputs: Mapping[str, str], work: Path) -> list[Figure]:
    """Return all figures.

    Args:
        outputs: Name of each step that ended ok → what it printed. A step of tests counts however
            it ended.
        work: The steps' folder, with metrics and results of tests.
    """
    return [
        *_bench({side: outputs.get(f"bench-{side}") for side in SIDES}),
        *_variants(outputs, work),
        *_all_gpus(outputs, work),
        *_probe(outputs.get("probe")),
        *_ladder(outputs.get("ladder")),
        *(each for name in ("tests-train", "tests-probe") if name in outputs
          for each in _tests(name, work / f"{name}.xml")),
    ]  # fmt: skip


def json_lines(text: str) -> list[Row]:
    """Return the lines of a text that are JSON objects."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def ratio(one: float | None, other: float | None) -> float | None:
    """Return one over the other; None if either is not known."""
    return one / other if one is not None and other else None


def _bench(outputs: Mapping[str, str | None]) -> Iterator[Figure]:
    found = {
        side: (json_lines(text) or [{}])[-1] for side, text in outputs.items() if text is not None
    }
    rates = {side: ratio(row.get("tokens"), row.get("seconds")) for side, row in found.items()}
    for side, row in found.items():
        yield figure(f"{side}: tokens per second", rates[side], "tok/s")
        yield figure(f"{side}: peak memory", row.get("memory"), "GiB")
    if found.get("train", {}).get("mfu"):
        yield figure("train: MFU", found["train"]["mfu"])
    if "train" in found and "trainer" in found:
        speed = ratio(rates["train"], rates["trainer"])
        memory = ratio(found["train"].get("memory"), found["trainer"].get("memory"))
        yield figure("tok/s, train / Trainer", speed, least=1.2)
        yield figure("peak memory, train / Trainer", memory, most=0.8)
    if "train" in found and "loop" in found:
        yield figure("tok/s, train / plain loop", ratio(rates["train"], rates["loop"]))


def _variants(outputs: Mapping[str, str], work: Path) -> Iterator[Figure]:
    for name in VARIANTS:
        ran = "bench-train" if name == "lora" else f"run-{name}"
        rows = steps_of(work / ("bench/ours" if name == "lora" else name)) if ran in outputs else []
        measured = peak(rows)
        if ran in outputs:
            yield figure(f"{name}: seconds per step", median_of(rows, "step_s"), "s")
        if ran in outputs and f"check-{name}" in outputs:
            estimate = estimated(outputs[f"check-{name}"])
            yield figure(f"{name}: memory, estimated", estimate, "GiB")
            yield figure(f"{name}: memory, measured", measured, "GiB")
            yield figure(f"{name}: memory, estimated / measured", ratio(estimate, measured),
                         least=0.9, most=1.1)  # fmt: skip
        if name == "lora" and ran in outputs:
            part = ratio(median_of(rows, "optimizer_s"), median_of(rows, "step_s"))
            if part is not None:
                yield figure("lora: optimizer's part of a step", part, most=0.2)


def _all_gpus(outputs: Mapping[str, str], work: Path) -> Iterator[Figure]:
    for layout in ("ddp", "fsdp"):
        if f"all-gpus-{layout}" in outputs:
            rows = steps_of(work / f"all-gpus-{layout}")
            yield figure(f"{layout}, all GPUs: seconds per step", median_of(rows, "step_s"), "s")
            yield figure(
                f"{layout} on all GPUs: tokens per second", median_of(rows, "tok_s"), "tok/s"
            )


def steps_of(output: Path) -> list[Row]:
    """Return the rows of a training's steps, without the first."""
    path = output / "metrics.jsonl"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [row for row in json_lines(text) if row.get("kind") == "step"][WARM:]


def median_of(rows: list[Row], key: str) -> float | None:
    """Return the median of a field; None if no row has it."""
    values = [float(row[key]) for row in rows if isinstance(row.get(key), int | float)]
    return statistics.median(values) if values else None


def peak(rows: list[Row]) -> float | None:
    """Return the most memory of any step, in GiB."""
    values = [row[key] for row in rows for key in ("memory", "memory_max") if row.get(key)]
    return max(values) / GIB if values else None


def estimated(said: str) -> float | None:
    """Return the GiB that `--check` expects torch to allocate: CUDA's own is no part of a peak."""
    found = _ESTIMATE.search(said)
    return float(found[1]) - float(found[2] or 0) if found else None


def _probe(said: str | None) -> Iterator[Figure]:
    if said is None:
        return
    rows = json_lines(said)
    kept = {
        row["casts"]: row for row in rows if row.get("about") == "activations" and "bytes" in row
    }
    if kept:
        on, off = kept.get(True, {}), kept.get(False, {})
        # train/model/activations.py counts 57.1 and 49.1 for this shape; within 10 %.
        yield figure("LoRA, casts on: bytes per token, width and layer", on.get("bytes"), "B",
                     least=51.4, most=62.8)  # fmt: skip
        yield figure("LoRA, casts off: bytes per token, width and layer", off.get("bytes"), "B",
                     least=44.2, most=54.0)  # fmt: skip
        seconds = ratio(off.get("step_s"), on.get("step_s"))
        yield figure("LoRA, seconds with casts off / on", seconds, most=0.95)
    for row in rows:
        if row.get("about") == "loss" and "words" in row:
            name = f"loss of {row['words']} tokens, chunked / whole"
            yield figure(f"{name}: seconds", ratio(row["chunked_s"], row["whole_s"]), most=1.1)
            if row["whole_peak"]:
                yield figure(
                    f"{name}: memory", ratio(row["chunked_peak"], row["whole_peak"]), most=0.5
                )
        if row.get("about") == "attention" and "masked_s" in row:
            yield figure("attention of packed rows, masked / causal: seconds",
                         ratio(row["masked_s"], row["causal_s"]))  # fmt: skip
        if row.get("about") == "events" and "us" in row:
            yield figure("a CUDA event", row["us"], "µs", most=20)
    for key, unit in (("tflops", "TFLOPS"), ("gb_s", "GB/s")):
        values = [row[key] for row in rows if row.get("about") == "trial" and key in row]
        if values:
            middle = statistics.median(values)
            yield figure(f"trial of one GPU: {unit}", middle, unit)
            spread = (max(values) - min(values)) / middle
            # One H200 alone showed 0.09. From 0.25 below its peers on, `check --deep` calls a GPU
            # slow: half of that may be noise.
            yield figure(
                f"trial of one GPU: {unit}, spread of {len(values)} runs", spread, most=0.125
            )


def _ladder(said: str | None) -> Iterator[Figure]:
    rows = [row for row in json_lines(said or "") if "rungs" in row]
    if rows:
        seconds = sum(rung["seconds"] for rung in rows[-1]["rungs"])
        yield figure("ladder: seconds", seconds, "s", most=30)


def _tests(name: str, path: Path) -> Iterator[Figure]:
    counts: dict[str, float] = {}
    try:
        for suite in ET.parse(path).getroot().iter("testsuite"):
            for key in ("tests", "failures", "errors", "skipped"):
                counts[key] = counts.get(key, 0) + int(suite.get(key, "0"))
    except (OSError, ValueError, ET.ParseError):
        yield figure(f"{name}: passed", None, least=1)
        return
    bad = counts["failures"] + counts["errors"]
    yield figure(f"{name}: passed", counts["tests"] - bad - counts["skipped"], least=1)
    yield figure(f"{name}: failed", bad, most=0)
    yield figure(f"{name}: skipped", counts["skipped"])
