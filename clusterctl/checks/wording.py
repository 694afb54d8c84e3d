"""Texts that findings and reports share."""

from __future__ import annotations

import math

NOT_IN_FACTS = "the saved facts do not have it: they predate this inventory"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def last_line(text: str) -> str:
    """Return the last line that is not blank; empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def ago(seconds: float | None) -> str:
    """Return an age in its largest unit, such as `3 hours ago`."""
    if seconds is None or not 0 <= seconds < math.inf:
        return "at an unknown time"
    for size, noun in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{counted(int(seconds // size), noun)} ago"
    return "just now"
