"""Texts that findings and reports share."""

import math
import re

_MINUTE = 60
NOT_IN_FACTS = "the saved facts do not have it: they predate this inventory"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def last_line(text: str) -> str:
    """Return the last line that is not blank; empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def main_line(error: str) -> str:
    """Return the line of an error that says most: NCCL's own, else torch's first, else the last."""
    _, _, own = error.partition("Last error:")
    lines = (own.strip() or error.strip()).splitlines()
    if own.strip() or re.match(r"[\w.]*(Error|Exception)\b", error):
        return lines[0].strip()
    return last_line(error)


def ago(seconds: float | None) -> str:
    """Return an age in its largest unit, such as `3 hours ago`."""
    if seconds is None or not 0 <= seconds < math.inf:
        return "at an unknown time"
    return f"{rough(seconds)} ago" if seconds >= _MINUTE else "just now"


def rough(seconds: float) -> str:
    """Return a length of time in its largest unit, such as `3 hours`."""
    for size, noun in ((86400, "day"), (3600, "hour"), (_MINUTE, "minute")):
        if seconds >= size:
            return counted(int(seconds // size), noun)
    return counted(int(seconds), "second")


def left(seconds: float) -> str:
    """Return how long something lasts, rounded: `7 days` also a moment after these began."""
    for size in (86400, 3600, _MINUTE):
        if seconds > size - _MINUTE / 2:
            return rough(round(seconds / size) * size)
    return rough(seconds)


def size_of(count: float) -> str:
    """Return bytes in their largest unit, such as `12.3 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
