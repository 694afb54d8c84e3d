"""Values of the command line and of variables, each checked against its bounds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from clusterctl.errors import UsageError

LAST_PORT = 65535


def flag_or_variable(
    args: argparse.Namespace, name: str, read: Callable[[str], object]
) -> tuple[object, str]:
    """Return the value of a flag, else of its `CLUSTERCTL_*`, with the name of that variable.

    Raises:
        UsageError: the variable cannot be read.
    """
    value, variable = getattr(args, name), f"CLUSTERCTL_{name.upper()}"
    if value is not None or not os.environ.get(variable):
        return value, ""
    try:
        return read(os.environ[variable]), variable
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{variable}: {error}") from error


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
