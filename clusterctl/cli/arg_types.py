"""Numbers of the command line and of variables: each within its bounds, or said what was wanted."""

from __future__ import annotations

import argparse
from collections.abc import Callable

LAST_PORT = 65535


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds."""

    def read(text: str) -> int:
        wanted = f"{least} or more" if most is None else f"{least} to {most}"
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number, {wanted}, found {text!r}")
        return number

    return read


def seconds(text: str) -> float:
    """Read a length of time that is not negative.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, found {text!r}")
    return number


def positive_seconds(text: str) -> float:
    """Read a length of time.

    Raises:
        argparse.ArgumentTypeError: it is something else, or none at all.
    """
    number = seconds(text)
    if number == 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, found {text!r}")
    return number
