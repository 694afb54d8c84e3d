"""The error of a line of data that cannot be used."""

from __future__ import annotations

NO_UTF8 = "expected UTF-8 text"
"""How the reason begins if a line is in another encoding."""


class BadLine(ValueError):  # noqa: N818  (said of the line, not of the program)
    """A line cannot be used; the message says why."""


class Swallowed(BadLine):
    """A row that has other rows in it: to leave it out would lose them."""
