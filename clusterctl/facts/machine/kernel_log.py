"""Parses the kernel log's lines that the node selected."""

from __future__ import annotations

from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.machine.machine import KernelLine, KernelLog

NEWEST, LENGTH = 500, 1024
"""Lines, and letters of a line, that count: a node sends no more lines, and they are shorter."""


def parse_kernel_log(answers: Answers) -> tuple[KernelLog | None, str]:
    """Return the log, or None and why it could not be read."""
    found: Any = answers.json("kernel-log")
    if not isinstance(found, dict):
        return None, answers.by_key["kernel-log"].why() if "kernel-log" in answers.by_key else ""
    if "error" in found:
        return None, str(found["error"])
    uptime = _uptime(answers)
    lines = found.get("lines")
    return KernelLog(
        source=str(found.get("source", "")),
        lines=tuple(
            KernelLine(
                age_s=None if uptime is None else max(uptime - line[0], 0.0),
                text=line[1][:LENGTH],
            )
            for line in (lines[-NEWEST:] if isinstance(lines, list) else [])
            if isinstance(line, list)
            and [type(part) for part in line] in ([float, str], [int, str])
        ),
    ), ""


def _uptime(answers: Answers) -> float | None:
    try:
        return float((answers.word("/proc/uptime") or "").split()[0])
    except (ValueError, IndexError):
        return None
