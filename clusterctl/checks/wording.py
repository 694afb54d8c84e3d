"""Texts that findings and reports share."""

from __future__ import annotations

NOT_IN_FACTS = "the saved facts do not have it: they predate this inventory"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def last_line(text: str) -> str:
    """Return the last line that is not blank; empty if there is none."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
