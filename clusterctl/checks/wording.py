"""Words for numbers of things, as findings and reports say them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
