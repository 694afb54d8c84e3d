"""Questions to the person at the terminal that have a yes; without a terminal the answer is no."""

import sys
from collections.abc import Callable

from clusterctl.errors import ClusterError


def can_ask() -> bool:
    """Tell whether a user is at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def says_yes(question: str) -> bool:
    """Ask the person at the terminal."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def agrees(error: ClusterError, question: str) -> bool:
    """Ask whether to continue in spite of an error."""
    return can_ask() and says_yes(f"{error}\n{question}")


def asks_to_copy(quiet: Callable[[], object]) -> Callable[[ClusterError], bool]:
    """Return what asks about a large copy; `quiet` removes what moves on the screen."""

    def may_copy(error: ClusterError) -> bool:
        quiet()
        return agrees(error, "Copy it?")

    return may_copy
