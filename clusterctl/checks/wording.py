"""Words of findings and reports: numbers of things, and what a program said last."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def last_line(text: str) -> str:
    """Return the last line that says something, empty where none does."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
