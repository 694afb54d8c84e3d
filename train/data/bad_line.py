"""The error of a line of data that cannot be used."""

from __future__ import annotations


class BadLine(ValueError):  # noqa: N818  (said of the line, not of the program)
    """A line cannot be used; the message says why."""
